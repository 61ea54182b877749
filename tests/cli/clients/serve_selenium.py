"""serve_selenium.py MODEL OUT - the page at / in headless Chromium: by mouse and by keyboard alone, as wide
as a desk and as a phone, one engine and two replicas, with a key and without. Screenshots go to
OUT/page-*.png: look at them. serve_clients.sh starts it."""
import os
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../lib")
from serve_server import Server, claim, finish, skip
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MODEL, OUT = sys.argv[1], sys.argv[2]
DESK, PHONE = (1100, 800), (390, 844)


def browser(size):
    o = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
                 f"--window-size={size[0]},{size[1]}",
                 "--user-data-dir=" + tempfile.mkdtemp(dir=OUT)):
        o.add_argument(flag)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    d = webdriver.Chrome(options=o, service=Service(shutil.which("chromedriver")))
    d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                      {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size is PHONE})
    return d


def until(what, test, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return claim(what, True)
        time.sleep(0.1)
    return claim(what, False, f"not within {seconds} s")


class Page:
    def __init__(self, server, size, name):
        self.server, self.name, self.shots = server, name, 0
        self.d = browser(size)
        self.d.get(f"http://{server.host}:{server.port}/")

    def at(self, name):
        return self.d.find_element(By.ID, name)

    def text(self, name):
        return self.at(name).get_property("textContent")

    def set(self, name, value):
        self.at(name).clear()
        self.at(name).send_keys(str(value))

    def focus(self):
        return self.d.switch_to.active_element

    def keys(self, *keys):
        ActionChains(self.d).send_keys(*keys).perform()

    def shot(self):
        self.shots += 1
        self.d.save_screenshot(os.path.join(OUT, f"page-{self.name}-{self.shots}.png"))

    def tokens(self):
        return self.d.find_elements(By.CSS_SELECTOR, "#out .tok")

    def answered(self, n):
        return until(f"{self.name}: {n} tokens come", lambda: f"{n} tokens" in self.text("note")
                     and self.at("go").is_enabled())

    def close(self):
        """Checks of every visit: no error in the console but for refusals, nothing fetched from another
        server, nothing wider than the window."""
        wide = self.d.execute_script("return document.documentElement.scrollWidth - innerWidth")
        claim(f"{self.name}: nothing is wider than the window", wide <= 0, f"{wide} pixels too wide")
        home = f"http://{self.server.host}:{self.server.port}/"
        asked = self.d.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
        claim(f"{self.name}: everything comes from the server itself",
              all(u.startswith((home, "data:")) for u in asked), asked)
        errors = [l for l in self.d.get_log("browser") if l["level"] == "SEVERE"
                  and " 401 " not in l["message"] and " 400 " not in l["message"]]
        claim(f"{self.name}: the console has no errors", not errors, errors)
        self.d.quit()


def by_mouse(server, name):
    p = Page(server, DESK, name)
    until(f"{name}: the page knows its model", lambda: p.text("model") == "m"
          and "context" in p.text("about"))
    p.set("text", "line 7: ")
    p.set("max", 24)
    p.set("temperature", 0)
    p.at("go").click()
    p.answered(24)
    alone = server.complete(prompt="line 7: ", max_tokens=24, temperature=0)["choices"][0]["text"]
    claim(f"{name}: the text is what the API gives", p.text("out") == "line 7: " + alone, p.text("out"))
    ActionChains(p.d).move_to_element(p.tokens()[3]).perform()
    until(f"{name}: hovering a token shows probabilities", lambda: p.at("tip").is_displayed()
          and p.text("tip").count("%") >= 5)
    p.shot()
    until(f"{name}: the gauges move", lambda: p.text("running") == "0" and "%" in p.text("kv")
          and p.text("rate") not in ("–", ""))
    busy = threading.Event()
    other = threading.Thread(target=lambda: [server.complete(prompt="x", max_tokens=400, n=8, ignore_eos=True)
                                             for _ in iter(busy.is_set, True)])
    other.start()
    until(f"{name}: running requests are counted", lambda: p.text("running") not in ("0", "–"))
    p.set("max", 400)
    p.d.execute_script("document.getElementById('go').click(); setTimeout(() => document.getElementById('stop').click(), 50)")
    until(f"{name}: Stop stops", lambda: p.at("go").is_enabled() and p.text("note").startswith("24 tokens"))
    busy.set()
    other.join()
    until(f"{name}: and nothing runs on", lambda: p.text("running") == "0")
    p.d.execute_script("document.getElementById('work').noValidate = true")
    p.set("temperature", -1)
    p.at("go").click()
    until(f"{name}: a refusal is said", lambda: p.at("error").is_displayed()
          and "temperature" in p.text("error"))
    p.close()


def by_keyboard(server, name):
    p = Page(server, PHONE, name)
    until(f"{name}: the text has the focus", lambda: p.focus().get_attribute("id") == "text")
    p.keys("two men", Keys.TAB)
    claim(f"{name}: the next stop is the number of tokens", p.focus().get_attribute("id") == "max",
          p.focus().get_attribute("id"))
    p.keys(Keys.BACKSPACE, Keys.BACKSPACE, "12", Keys.ENTER)
    p.answered(12)
    for _ in range(40):
        if "tok" in (p.focus().get_attribute("class") or ""):
            break
        p.keys(Keys.TAB)
    claim(f"{name}: Tab comes to a token and its probabilities", "tok" in p.focus().get_attribute("class")
          and p.at("tip").is_displayed())
    claim(f"{name}: a token is named for those who do not see it",
          "%" in (p.focus().get_attribute("aria-label") or ""))
    p.shot()
    until(f"{name}: a model with a template offers a chat", lambda: p.at("tab-chat").is_enabled())
    claim(f"{name}: a completion has no system prompt", not p.at("system").is_displayed())
    p.at("tab-complete").send_keys(Keys.ARROW_RIGHT)
    claim(f"{name}: an arrow goes from tab to tab", p.focus().get_attribute("id") == "tab-chat"
          and p.at("tab-chat").get_attribute("aria-selected") == "true")
    p.at("system").send_keys("be short")
    for turn, said in enumerate(("hello", "and then?")):
        p.at("text").send_keys(said, Keys.CONTROL, Keys.ENTER)
        until(f"{name}: turn {turn} is answered",
              lambda: len(p.d.find_elements(By.CSS_SELECTOR, ".turn.assistant .tok")) > 0
              and p.at("go").is_enabled())
        claim(f"{name}: {turn + 1} turns of the user stand there",
              len(p.d.find_elements(By.CSS_SELECTOR, ".turn.user")) == turn + 1)
    p.shot()
    p.close()


def with_key():
    keys = os.path.join(OUT, "page-keys")
    with open(keys, "w") as f:
        f.write("sesame\n")
    server = Server(MODEL, "--api-key-file", keys)
    p = Page(server, DESK, "key")
    p.set("text", "x")
    p.set("max", 4)
    p.at("go").click()
    until("without the key it says so", lambda: p.at("error").is_displayed())
    p.at("key").send_keys("sesame")
    until("with the key the page knows its model", lambda: p.text("model") == "m")
    p.at("go").click()
    p.answered(4)
    p.close()
    server.stop()


if not shutil.which("chromedriver"):
    skip("no chromedriver here: the page is not looked at")
    finish()
for name, options in (("one", []), ("replicas", ["--replicas", "2"])):
    server = Server(MODEL, *options)
    if not claim(f"{name}: it serves", server.port, server.err):
        finish()
    try:
        by_mouse(server, name)
        by_keyboard(server, name + "-phone")
    except WebDriverException as e:
        claim(f"{name}: the browser", False, e)
    server.stop()
with_key()
finish()
