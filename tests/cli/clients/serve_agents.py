"""serve_agents.py MODEL TMP - agents of other projects run to their end: pydantic-ai and OpenAI's Agents SDK, each with
one tool, over /v1/responses, /v1/chat/completions and /v1/messages. The model's text is the test's: a call, and then an answer."""
import asyncio
import json
import os
import shutil
import sys
from serve_server import Server, claim, finish, skip

model, tmp = f"{sys.argv[2]}/agents.model", sys.argv[2]
script = f"{tmp}/agents.answer"
shutil.copytree(sys.argv[1], model)
with open(f"{model}/generation_config.json", "w") as f:
    json.dump({"eos_token_id": 0}, f)
with open(f"{model}/chat_template.jinja", "w") as f:
    f.write("{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
            "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
            "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}{# </think> #}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
CALL = "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"area\", \"arguments\": {\"width\":6,\"height\":7}}\n</tool_call>"
asked = []


def say(text):
    with open(script, "w") as f:
        f.write(text)


def area(width: int, height: int) -> int:
    """The area of a rectangle, in square metres."""
    asked.append((width, height))
    say(f"<think>\nwell\n</think>\n\nIt is {width * height}.")
    return width * height


os.environ["SHARDLINE_ANSWER"] = script
s = Server(model)
base = f"http://{s.host}:{s.port}/v1"


def ran(what, run):
    say(CALL)
    asked.clear()
    try:
        got = run()
    except Exception as e:                       # of many kinds
        got = repr(e)
    claim(f"{what}: the tool is called, its result answered", asked == [(6, 7)] and got == "It is 42.", (asked, got))


try:
    import pydantic
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError:
    skip("no pydantic-ai here")
else:
    provider = OpenAIProvider(base_url=base, api_key="any")

    class Size(pydantic.BaseModel):
        metres: int

    def streamed(agent):
        async def run():
            async with agent.run_stream("How large?") as r:
                return "".join([x async for x in r.stream_text(delta=True)])
        return asyncio.run(run())

    def try_model(model, *outputs):
        def agent():
            return pydantic_ai.Agent(model, tools=[area], instructions="Be brief.",
                                     model_settings={"max_tokens": 500})
        ran(f"pydantic-ai, {type(model).__name__}", lambda: agent().run_sync("How large?").output)
        ran(f"pydantic-ai, {type(model).__name__}, as a stream", lambda: streamed(agent()))
        for how in outputs:
            say("{\"metres\": 42}" if how == pydantic_ai.NativeOutput else
                "<tool_call>\n{\"name\": \"final_result\", \"arguments\": {\"metres\":42}}\n</tool_call>")
            got = pydantic_ai.Agent(model, output_type=how(Size), model_settings={"max_tokens": 500}).run_sync("How large?")
            claim(f"pydantic-ai, {type(model).__name__}: an answer as a class, {how.__name__}", got.output == Size(metres=42), got)

    try_model(OpenAIResponsesModel("m", provider=provider), pydantic_ai.ToolOutput, pydantic_ai.NativeOutput)
    try_model(OpenAIChatModel("m", provider=provider), pydantic_ai.ToolOutput, pydantic_ai.NativeOutput)
    try:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
    except ImportError:
        skip("no anthropic here")
    else:
        try_model(AnthropicModel("m", provider=AnthropicProvider(base_url=base[:-3], api_key="any")), pydantic_ai.ToolOutput)

try:
    import agents
    import openai
except ImportError:
    skip("no openai-agents here")
else:
    agents.set_tracing_disabled(True)

    async def run_agent(kind, stream):
        async with openai.AsyncOpenAI(base_url=base, api_key="any") as client:
            agent = agents.Agent(name="a", instructions="Be brief.", tools=[agents.function_tool(area)],
                                 model=kind(model="m", openai_client=client))
            if not stream:
                return (await agents.Runner.run(agent, "How large?")).final_output
            r = agents.Runner.run_streamed(agent, "How large?")
            async for _ in r.stream_events():
                pass
            return r.final_output

    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        ran(f"Agents SDK, {kind.__name__}", lambda: asyncio.run(run_agent(kind, False)))
        ran(f"Agents SDK, {kind.__name__}, as a stream", lambda: asyncio.run(run_agent(kind, True)))
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
finish()
