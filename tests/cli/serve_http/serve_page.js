// serve_page.js PAGE.html - the page's script, with a stand-in for the browser: what it shows of the server's numbers, whether it offers a
// chat, what it sends. serve_page.sh starts it; serve_selenium.py looks at the page in a real browser.
"use strict";
const fs = require("fs"), vm = require("vm");
const html = fs.readFileSync(process.argv[2], "utf8");
let passed = 0, failed = 0;

function claim(what, ok, got) {
  if (ok) passed++;
  else failed++, console.log(`FAIL ${what}: ${JSON.stringify(got)}`);
}

// An element with the attributes that its tag in the page has.
function element(tag) {
  const value = /\bvalue="([^"]*)"/.exec(tag);
  return { hidden: / hidden[ >]/.test(tag), disabled: / disabled[ >]/.test(tag), value: value ? value[1] : "", textContent: "", className: "", title: "", kids: [], style: {},
           setAttribute() {}, append(...kids) { this.kids.push(...kids); }, focus() {} };
}

// The page as a browser would have loaded it. server: path -> [status, body]; sent: the bodies of its POSTs. tick(): a second passes.
function open(server) {
  const elements = {}, sent = [], page = { sent, clock: 0 };
  const at = id => elements[id] = elements[id] || element((new RegExp(`<[^>]*id="${id}"[^>]*>`).exec(html) || [""])[0]);
  let next;
  const context = vm.createContext({
    document: { getElementById: at, createElement: () => element(""), querySelector: () => element(""), addEventListener() {}, title: "" },
    performance: { now: () => page.clock }, setTimeout: f => { next = f; }, AbortController, TextDecoderStream,
    fetch: async (path, o) => {
      if (o.body) sent.push(JSON.parse(o.body));
      const [status, body] = server[path] || [404, { error: { message: "nothing" } }];
      return { ok: status === 200, status, text: async () => body, json: async () => body };
    }
  });
  vm.runInContext(/<script>([^]*)<\/script>/.exec(html)[1], context);
  return Object.assign(page, { run: code => vm.runInContext(code, context), at, settle: () => new Promise(setImmediate), async tick() { await page.settle(); page.clock += 1000; next(); await page.settle(); } });
}

const metrics = n => `vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\nvllm:kv_cache_usage_perc{engine="0"} 0\nvllm:generation_tokens_total{engine="0"} ${n}\n`;
const server = template => ({ "v1/models": [200, { data: [{ id: "m", max_model_len: 64 }] }], "tokenizer_info": [200, { chat_template: template }], "metrics": [200, metrics(0)] });

async function rates() {
  const s = server(null), p = open(s);
  await p.tick();
  claim("before the first token the rate is 0", p.at("rate").textContent === "0.0", p.at("rate").textContent);
  s.metrics = [200, metrics(40)];
  await p.tick();
  claim("a burst has a rate", p.at("rate").textContent === "40.0" && p.at("rate").className === "", p.at("rate").textContent);
  for (let i = 0; i < 3; i++) await p.tick();
  claim("it stays when the burst is over", p.at("rate").textContent === "40.0", p.at("rate").textContent);
  claim("and is marked as over", p.at("rate").className === "idle" && /lately/.test(p.at("rate-name").textContent), p.at("rate-name").textContent);
  s.metrics = [200, metrics(50)];
  await p.tick();
  claim("the next burst has a rate of its own", p.at("rate").textContent === "10.0" && p.at("rate").className === "", p.at("rate").textContent);
}

async function chats() {
  for (const [what, info, can] of [["a template", [200, { chat_template: "{{ messages }}" }], true], ["no template", [200, { chat_template: null }], false],
                                   ["no tokenizer", [404, { error: { message: "none" } }], false]]) {
    const p = open({ ...server(null), "tokenizer_info": info });
    claim(`${what}: no chat before the server has answered`, p.at("tab-chat").disabled);
    await p.tick();
    claim(`${what}: ${can ? "a chat" : "no chat"}`, p.at("tab-chat").disabled === !can, p.at("tab-chat").title);
    claim(`${what}: the reason is there`, can || /no chat template/.test(p.at("tab-chat").title), p.at("tab-chat").title);
  }
}

async function messages() {
  const p = open(server("{{ messages }}"));
  await p.tick();
  claim("a completion has no system prompt", p.at("system").hidden);
  p.at("tab-chat").onclick();
  claim("a chat has one", !p.at("system").hidden);
  for (const [system, want] of [["be short", ["system", "user"]], ["", ["user"]]]) {
    p.at("system").value = system;
    p.at("text").value = "hi";
    p.at("work").onsubmit({ preventDefault() {} });
    await p.settle();
    const m = p.sent.pop().messages;
    claim(`system prompt ${JSON.stringify(system)}: the roles are ${want}`, m.map(x => x.role).join() === want.join(), m);
    claim("it is the first message", !system || m[0].content === system, m);
  }
  p.at("tab-complete").onclick();
  claim("it is hidden again", p.at("system").hidden);
}

// Reasoning is shown, but is no part of the answer that goes into the next turn.
function reasoning() {
  const p = open(server("{{ messages }}")), pieces = choice => p.run(`piecesOf(${JSON.stringify(choice)})`);
  p.run('mode = "chat"');
  const thought = pieces({ delta: { reasoning_content: "hm" } }), said = pieces({ delta: { content: "Hi" } }),
        token = pieces({ delta: { reasoning_content: "hm" }, logprobs: { content: [{ token: "hm", logprob: -1, top_logprobs: [] }] } });
  claim("reasoning is shown as such", thought.length === 1 && thought[0].text === "hm" && thought[0].thought, thought);
  claim("with its token, too", token.length === 1 && token[0].text === "hm" && token[0].thought, token);
  claim("content is not", said.length === 1 && said[0].text === "Hi" && !said[0].thought, said);
  claim("a token without text yet is one", pieces({ delta: {} }).length === 0);
}

(async () => {
  await rates();
  await chats();
  await messages();
  reasoning();
  console.log(`${passed} passed, ${failed} failed, 0 skipped`);
})();
