"""The page in a real browser (chromium, headless), served by page_server.py: what it shows of a run, what it does with each
answer and event of the coordinator, and the same page as a report."""

from __future__ import annotations

import base64
import copy
import re
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from browser import HOSTILE, BrowserTest
from page_server import BEGAN, CHART, COLUMNS, PAGE, PageServer, column, layer_row, report, snapshot
from selenium.webdriver.common.keys import Keys

if not CHART.is_file():
    raise unittest.SkipTest(f"{CHART} is missing: install the package libjs-chart.js")

TEXTS = ["h1", "h2", "#state", "#connection", ".tiles dt", ".tiles dd", "#warnings li", "th", "#stages td", ".note", ".legend",
         "button.link", ".bad", ".quiet", "label", "select", "summary", ".provenance dt", "pre", ".charts figcaption"]


class PageTest(BrowserTest):
    def serve(self, run: dict[str, Any] | None) -> PageServer:
        server = PageServer(run)
        self.enterContext(server)
        return server

    def open(self, run: dict[str, Any]) -> PageServer:
        """The page of `run`, drawn and connected."""
        server = self.serve(run)
        self.browser.get(server.address)
        self.until(lambda: self.painted_at() is not None)
        self.until(lambda: self.text("connection") == "live")
        return server

    def test_a_study_shows_a_row_a_variant(self) -> None:
        run = snapshot()
        spread = {"median": 0.01, "least": 0.008, "most": 0.013}
        run["status"]["variants"] = [
            {"variant": "narrow", "seeds": 3, "relative_mse": spread, "kl": spread, "seconds_per_step": spread, "state_bytes": 3 << 20,
             "on_front": True, "window_kl": 0.025, "control_kl": 0.0625, "kept_untrained": 2, "layers": 9, "texts": {"validation": {"kl": spread, "gap_closed": {**spread, "median": 0.62}}}},
            {"variant": "untold", "seeds": 1, "relative_mse": spread, "kl": None, "seconds_per_step": None, "state_bytes": 0,
             "on_front": False, "kept_untrained": 0, "layers": 3}]
        self.open(run)
        self.assertIn("narrow30.01000.01000.008000.01300.02500.06252 of 9validation 62.0 %3.0 MiB10.00yes", self.text("variants"))
        self.assertIn("untold", self.text("variants"))

    def test_every_section_shows_its_part_of_the_run_without_an_error(self) -> None:
        self.errors()
        self.open(snapshot())
        self.assertEqual(self.text("run"), "smol")
        self.assertEqual(self.text("state"), "running")
        self.assertIn("13 min 32 s", self.text("tiles"))
        self.assertIn("vm-1 hangs", self.text("warnings"))
        self.assertIn("0/4", self.text("stages"))
        self.assertIn("capture1 min 30 s1 min 15 s581 MiB672 MiB3.0 GiB4.0 GiB12.3011.00", self.text("plan"))
        self.assertEqual(self.text("plan-note"),
                         "so far 12.30 GPU-hours, cost 41.00; to come 30.10 GPU-hours, cost 100.0")
        self.assertIn("13.36", self.text("quality"))
        self.assertIn("12.05", self.text("quality"))
        self.assertIn("window of 162 tokens", self.text("quality-note"))
        self.assertIn("41.3 %", self.text("quality"))
        self.assertIn("wiki (not in domain)", self.text("quality"))
        self.assertTrue(self.js("return document.getElementById('variants-section').hidden"), "this run has none")
        self.assertIn("softmax kept", self.text("layers"))
        self.assertIn("failed (corrupt): shard damaged", self.text("events"))
        self.assertIn("1 failed, 1 revoked", self.text("faults"))
        self.assertIn("softmax_layers", self.text("recipe"))
        self.assertEqual(self.js("return [...charts.keys()].length"), 8)
        colors = self.js("""const all = new Set(), c = document.getElementById('heat');
            const data = c.getContext('2d').getImageData(40, 8, c.width - 100, c.height - 50).data;
            for (let i = 0; i < data.length; i += 4) all.add(data.slice(i, i + 3).join()); return all.size;""")
        self.assertGreater(colors, 50)
        self.assertEqual(self.errors(), [])

    def test_of_many_workers_the_newest_200_have_lanes(self) -> None:
        run = snapshot()
        attempt = run["history"]["attempts"][0]
        run["history"]["attempts"] = [
            {**attempt, "token": token, "worker": f"gpu-{token % 250}", "started": BEGAN + 60 * (token // 250) + token % 250,
             "ended": BEGAN + 60 * (token // 250) + token % 250 + 55, "outcome": ("done", "failed", "revoked")[token % 3]}
            for token in range(5000)]
        self.open(run)
        self.assertIn("newest 200 workers of 250", self.text("workers-note"))
        self.assertIn("newest 200 of 5000", self.text("attempts-note"))
        self.assertEqual(self.js("return new Set(lanes.bars.map((bar) => bar.attempt.worker)).size"), 200)
        self.assertLess(self.js("const from = performance.now(); drawLanes(); return performance.now() - from"), 250.0)
        lanes = self.browser.find_element("id", "lanes")
        lanes.send_keys(Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        self.assertIn("gpu-51", self.text("lanes-live"))

    def test_attention_maps_are_chosen_by_layer_and_head(self) -> None:
        run = snapshot()
        run["history"]["attention"][3]["student"] = base64.b64encode(bytes([200] * 4096)).decode()
        self.open(run)
        picture = "return document.getElementById('attention-student').toDataURL()"
        before = self.js(picture)
        self.browser.find_element("css selector", "#attention-layer option[value='2']").click()
        self.browser.find_element("css selector", "#attention-head option[value='1']").click()
        self.assertNotEqual(self.js(picture), before)
        label = self.js("return document.getElementById('attention-student').getAttribute('aria-label')")
        self.assertEqual(label, "attention weights of layer 2, head 1, student")

    def test_what_happens_while_the_run_is_fetched_is_not_lost_and_not_taken_twice(self) -> None:
        run = snapshot()
        server = self.serve(run)
        event = {"time": BEGAN + 40, "subject": "transfer/b0001", "type": "done", "text": "meanwhile"}
        server.before_run = lambda: server.send("history", {"events": [event]})
        server.holds_event = False
        self.browser.get(server.address)
        self.until(lambda: self.text("events").count("meanwhile") == 1)
        server.holds_event = True
        run["history"]["events"].append(event)
        self.browser.get(server.address)
        self.until(lambda: self.text("connection") == "live")
        time.sleep(0.7)
        self.assertEqual(self.text("events").count("meanwhile"), 1)

    def test_126_layers_of_500_validations_are_painted_within_a_second(self) -> None:
        best = float("inf")
        for _ in range(5):  # the machine may be busy with other tests
            if best < 1000.0:
                break
            self.open(snapshot(layers=126, rows=500, per_block=9))
            best = min(best, self.painted_at() or best)
        self.assertLess(best, 1000.0)

    def test_strings_of_a_run_are_shown_as_text(self) -> None:
        run = snapshot()
        run["version"] = run["recipe"] = HOSTILE
        run["status"].update(run="/runs/" + HOSTILE.replace("/", ""), state=HOSTILE, host=HOSTILE, warnings=[HOSTILE])
        for task in run["status"]["tasks"]:
            task.update(worker=HOSTILE, reason=HOSTILE)
        run["status"]["tasks"][-1]["result"]["texts"] = {HOSTILE: {"perplexity": 1.5}}
        run["status"]["stages"][0]["stage"] = HOSTILE
        for attempt in run["history"]["attempts"]:
            attempt.update(worker=HOSTILE, host=HOSTILE, reason=HOSTILE, task=HOSTILE)
        for event in run["history"]["events"]:
            event.update(subject=HOSTILE, type=HOSTILE, text=HOSTILE)
        self.open(run)
        self.browser.find_element("css selector", "details summary").click()
        for place in ("run", "state", "warnings", "stages", "quality", "attempts", "events", "recipe", "provenance"):
            with self.subTest(place=place):
                self.assertIn(HOSTILE, self.text(place))
        self.browser.find_element("id", "lanes").send_keys(Keys.HOME)
        self.assertIn(HOSTILE, self.text("lanes-tip"))
        self.assertEqual(self.js("return document.querySelectorAll('img').length"), 0)
        self.assertNotIn("innerHTML", "".join(file.read_text() for file in PAGE.glob("*.js")))

    def test_a_phone_scrolls_downwards_only(self) -> None:
        run = snapshot(layers=30, per_block=5)
        run["status"]["run"] = "/runs/" + "a-name-without-a-space" * 5
        run["status"]["warnings"] = ["x" * 200]
        self.screen(375, 812)
        self.open(run)
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 375)
        self.assertEqual(self.js("""return [...document.querySelectorAll('section, header')].filter(
            (part) => part.getBoundingClientRect().right > 376).map((part) => part.textContent.slice(0, 30))"""), [])

    def test_the_keyboard_chooses_a_layer(self) -> None:
        self.open(snapshot())
        self.js("choose(0)")
        self.browser.find_element("tag name", "body").send_keys(Keys.TAB)  # the link that skips to the heat map
        self.browser.switch_to.active_element.send_keys(Keys.ENTER)
        heat = self.browser.find_element("id", "heat")
        heat.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.HOME)
        self.assertIn("layer 2, block 0, step 0", self.text("heat-live"))
        self.assertIn("relative MSE", self.text("heat-tip"))
        self.assertEqual(self.text("layer-title"), "Layer 0")
        heat.send_keys(Keys.ENTER)
        self.assertEqual(self.text("layer-title"), "Layer 2")
        self.assertIn("Layer 2", self.js("return 'Layer ' + document.getElementById('layer').value"))
        heat.send_keys(Keys.ARROW_UP, Keys.ENTER)
        self.assertIn("Keeps softmax", self.text("layer-note"))
        self.browser.find_elements("css selector", "#layers tbody button")[4].send_keys(Keys.ENTER)
        self.assertEqual(self.text("layer-title"), "Layer 4")

    def test_a_click_chooses_a_layer_and_the_colour_has_five_measures(self) -> None:
        self.open(snapshot())
        self.js("""const heat = document.getElementById('heat'), box = heat.getBoundingClientRect();
            heat.dispatchEvent(new MouseEvent('click', {clientX: box.left + 100, clientY: box.top + 6 + 17 * 5.5}));""")
        self.assertEqual(self.text("layer-title"), "Layer 5")
        pictures = set()
        for option in self.browser.find_elements("css selector", "#metric option"):
            option.click()
            pictures.add(self.js("return document.getElementById('heat-scale').toDataURL()"))
        self.assertEqual(len(pictures), 5)

    def test_a_column_that_the_table_names_is_drawn_without_a_change_of_the_page(self) -> None:
        run = snapshot()
        run["columns"] = [*COLUMNS, column("layer", "drift", "drift of the maps", importance=9, heat=True, chart="drift")]
        for layer in (0, 2):
            series = run["history"]["series"][f"layer/{layer}"]
            series["columns"] = [*series["columns"], "drift"]
            series["rows"] = [[*row, 0.125 * (i + 1)] for i, row in enumerate(series["rows"])]
        run["history"]["series"]["layer/0/head/5"] = {"columns": ["entropy"], "rows": [[0, BEGAN, 2.5]]}
        self.open(run)
        self.assertIn("drift of the maps", self.text("metric"))
        self.assertIn("drift of the maps", self.js("return document.getElementById('layers').tHead.textContent"))
        self.assertEqual(self.js("return document.querySelector('#layers tbody tr').cells[3].textContent"), "2.50")
        self.js("choose(2)")
        self.assertEqual(self.js("return charts.get('chart-layer-drift').data.datasets[0].data.length"), 20)

    def test_the_layers_sort_by_their_error(self) -> None:
        self.open(snapshot())
        self.browser.find_element("css selector", "#layers th[data-key=mse] button").click()
        head = self.browser.find_element("css selector", "#layers th[data-key=mse]")
        self.assertEqual(head.get_attribute("aria-sort"), "descending")
        shown = self.js("return [...document.querySelectorAll('#layers tbody tr')].map((row) => row.cells[3].textContent)")
        errors = [float(value) for value in shown if value[0].isdigit()]
        self.assertEqual(errors, sorted(errors, reverse=True))
        self.assertEqual(len(errors), 8)

    def test_events_change_what_is_drawn(self) -> None:
        run = snapshot()
        server = self.open(run)
        before = self.heat()
        columns = run["history"]["series"]["layer/0"]["columns"]
        fresh = {f"layer/{layer}": {"columns": columns, "rows": [layer_row(layer, 0)]} for layer in (9, 10, 11)}
        server.send("history", {"series": fresh, "attempts": [{**run["history"]["attempts"][4], "token": 50, "worker": "new"}],
                                "events": [{"time": BEGAN + 30, "subject": "transfer/b0003", "type": "granted",
                                            "text": "granted to new"}]})
        self.until(lambda: self.heat() != before)
        self.assertIn("granted to new", self.text("events"))
        server.send("status", {**run["status"], "fraction": 0.75, "eta_seconds": 100.0})
        self.until(lambda: "75 %" in self.text("tiles"))
        self.assertEqual(server.requests.count("/api/run"), 1)

    def test_rows_of_an_attempt_that_began_again_replace_what_it_repeats(self) -> None:
        run = snapshot()
        server = self.open(run)
        series = run["history"]["series"]["layer/2"]
        rows = [layer_row(2, 100), layer_row(2, 120)]
        server.send("history", {"series": {"layer/2": {"columns": series["columns"], "rows": rows}}})
        self.until(lambda: self.js("return run.series.get('layer/2').rows.length") == 7)
        self.assertEqual(self.js("return run.series.get('layer/2').rows.map((row) => row[0])"), [0, 20, 40, 60, 80, 100, 120])

    def test_it_draws_at_most_every_half_second(self) -> None:
        run = snapshot()
        server = self.open(run)
        self.js("window.drawn = 0; const one = SECTIONS[0]; SECTIONS[0] = (all) => { window.drawn += 1; one(all); };")
        for i in range(40):
            server.send("status", {**run["status"], "fraction": i / 50})
            time.sleep(0.05)
        self.until(lambda: "78 %" in self.text("tiles"))
        self.assertLessEqual(self.js("return window.drawn"), 7)

    def test_a_hidden_page_draws_nothing_until_it_is_seen(self) -> None:
        run = snapshot()
        server = self.open(run)
        hide = """Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));"""
        time.sleep(0.6)
        self.js(hide, True)
        server.send("status", {**run["status"], "fraction": 0.9})
        self.until(lambda: self.js("return run.status.fraction") == 0.9)
        time.sleep(0.7)
        self.assertNotIn("90 %", self.text("tiles"))
        self.js(hide, False)
        self.until(lambda: "90 %" in self.text("tiles"))

    def test_reset_fetches_the_run_again(self) -> None:
        run = snapshot()
        server = self.open(run)
        server.run = copy.deepcopy(run)
        server.run["status"]["run"] = "/runs/other"
        server.send("reset", {})
        self.until(lambda: self.text("run") == "other")
        self.assertEqual(server.requests.count("/api/run"), 2)
        self.until(lambda: self.text("connection") == "live")

    def test_it_says_that_the_coordinator_is_gone_and_goes_on_from_the_last_event(self) -> None:
        run = snapshot()
        server = self.open(run)
        server.send("status", {**run["status"], "fraction": 0.63})
        self.until(lambda: "63 %" in self.text("tiles"))
        self.collect_connections()
        server.hang_up()
        self.until(lambda: "disconnected, retrying" in self.js("return window.said"))
        self.until(lambda: self.text("connection") == "live")
        self.assertEqual(server.last_ids, [None, "18"])
        self.assertEqual(server.requests.count("/api/run"), 1)

    def test_without_the_secret_it_says_where_the_secret_is(self) -> None:
        server = self.serve(None)
        self.browser.get(server.address)
        self.until(lambda: "carries the secret" in self.text("message"))
        self.assertFalse(self.js("return document.getElementById('message').hidden"))
        self.assertTrue(self.js("return document.getElementById('main').hidden"))
        asked = len(server.requests)
        time.sleep(2.5)
        self.assertEqual(len(server.requests), asked)  # no use in trying again

    def test_a_run_that_has_nothing_yet_says_so_in_each_section(self) -> None:
        self.errors()
        self.open({"version": "0", "live": True, "id": 0, "recipe": "", "columns": COLUMNS, "history": {},
                   "status": {"run": "/runs/young", "state": "preparing"}})
        for place, words in {"layer-note": "No layers yet", "workers-note": "No attempts yet", "events-note": "No events",
                             "quality-note": "Nothing evaluated", "attention-note": "None yet"}.items():
            with self.subTest(place=place):
                self.assertIn(words, self.text(place))
        self.assertEqual(self.errors(), [])

    def contrasts(self) -> dict[str, float]:
        """Of each kind of text to the ground behind it, by WCAG."""
        return self.js("""
            const parse = (color) => color.match(/[\\d.]+/g).map(Number);
            const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
            const ground = (element) => {
              const color = parse(getComputedStyle(element).backgroundColor);
              return color.length < 4 || color[3] > 0 || !element.parentElement ? color : ground(element.parentElement);
            };
            return Object.fromEntries(arguments[0].map((name) => {
              const element = document.querySelector(name);
              const [high, low] = [parse(getComputedStyle(element).color), ground(element)].map(light).sort((x, y) => y - x);
              return [name, (high + 0.05) / (low + 0.05)];
            }));""", TEXTS)

    def test_light_and_dark_are_readable_and_follow_the_system(self) -> None:
        self.open(snapshot())
        grounds = []
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            time.sleep(0.7)
            grounds.append(self.js("return getComputedStyle(document.body).backgroundColor"))
            for name, contrast in self.contrasts().items():
                with self.subTest(scheme=scheme, name=name):
                    self.assertGreaterEqual(contrast, 4.5)
            drawn = self.js("return charts.get('chart-layer-mse').options.scales.x.ticks.color")
            self.assertEqual(drawn, self.js("return themed('muted')"))
        self.assertNotEqual(*grounds)

    def test_all_that_can_be_used_has_a_name_and_a_place_in_the_order_of_tabs(self) -> None:
        self.open(snapshot())
        nameless = self.js("""
            const isNamed = (element) => element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') ||
                element.textContent.trim() || element.closest('label');
            return [...document.querySelectorAll('select, button, [tabindex], [role=img], [role=progressbar], section')]
                .filter((element) => !isNamed(element)).map((element) => element.outerHTML.slice(0, 80));""")
        self.assertEqual(nameless, [])
        self.assertEqual(self.js("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length"), 0)

    def test_a_report_draws_the_run_that_it_carries_and_asks_nobody(self) -> None:
        self.errors()
        run = snapshot(layers=30, per_block=5)
        run["history"]["events"][0]["text"] = "</script>" + HOSTILE
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.html"
            file.write_text(report(run), encoding="utf-8")
            self.browser.get(file.as_uri())
            self.until(lambda: self.painted_at() is not None)
            self.assertIn("report of 2026-09-21", self.text("connection"))
            self.assertIn("</script>" + HOSTILE, self.text("events"))
            self.assertEqual(self.js("return [...charts.keys()].length"), 8)
            self.assertEqual(self.requests(), [])
            self.browser.find_element("id", "heat").send_keys(Keys.ARROW_DOWN, Keys.ENTER)
        self.assertEqual(self.errors(), [])

    def test_the_parts_can_be_inlined(self) -> None:
        page = (PAGE / "index.html").read_text(encoding="utf-8")
        named = set(re.findall(r'(?:src|href)="/([\w.]+)"', page))
        self.assertEqual(named - {"chart.js"}, {file.name for file in PAGE.iterdir() if file.suffix in (".js", ".css")})
        for file in [PAGE / name for name in named - {"chart.js"}] + [CHART]:
            with self.subTest(file=file.name):
                text = file.read_text(encoding="utf-8")
                self.assertNotIn("</script", text)
                self.assertNotIn("</style", text)
                self.assertNotIn("<!--", text)
        self.assertNotRegex(page, r'\sstyle=|\son\w+=')  # the policy forbids both


if __name__ == "__main__":
    unittest.main()
