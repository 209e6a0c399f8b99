"""Serves coordinator/web/page as the coordinator does, with a run made by the test: a stand-in without C++, so that what the
page does with each answer and event can be tested alone.

    with PageServer(snapshot()) as server:
        browser.get(server.address)
        server.send("status", {...})
"""

from __future__ import annotations

import base64
import http.server
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "coordinator" / "web" / "page"
CHART = Path("/usr/share/javascript/chart.js/chart.min.js")
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
BEGAN = time.time() - 1000.0


def column(series: str, name: str, label: str, **fields: Any) -> dict[str, Any]:
    """A row of the table of columns, as storage/history/columns.cpp has it."""
    return {"series": series, "name": name, "label": label, "help": "", "unit": "", "log": False, "importance": -1, "heat": False,
            "chart": "", "line": label, "dashed": False, "color": 0, **fields}


ERRORS, SHARES = "MSE of the attention output", "share of the attention mass"
COLUMNS = [
    column("layer", "mse", "MSE", log=True, importance=7, heat=True, chart=ERRORS, line="student"),
    column("layer", "relative_mse", "relative MSE", log=True, importance=6, heat=True),
    column("layer", "control_mse", "control's MSE", log=True, importance=5, chart=ERRORS, line="control", dashed=True),
    column("layer", "linear_share", "linear share", unit="share", importance=4, heat=True, chart=SHARES),
    column("layer", "window_share", "window share", unit="share", chart=SHARES),
    column("layer", "sink_share", "sink share", unit="share", importance=2, chart=SHARES),
    column("layer", "window_factor", "window factor"),
    column("layer", "gradient_norm", "gradient norm", log=True, importance=1, heat=True, chart="gradient norm", color=4),
    column("layer", "learning_rate", "learning rate", importance=0, chart="learning rate"),
    column("layer", "cross_entropy", "cross-entropy", unit="nats"),
    column("finetune", "loss", "training loss", importance=3, chart="loss", line="training"),
    column("finetune", "gradient_norm", "gradient norm", log=True, importance=1, chart="gradient norm", color=4),
    column("finetune", "update_norm/", "norm of a step's update", log=True, chart="norm of a step's update"),
    column("finetune/validation", "loss", "validation loss", importance=3, chart="loss", line="validation"),
    column("finetune/validation", "kl", "KL to the teacher", importance=2, chart="validation: KL to the teacher, nats a token", color=3),
    column("finetune/validation", "cross_entropy", "cross-entropy", importance=2, chart="validation: cross-entropy", color=3)]
LAYER_COLUMNS = [row["name"] for row in COLUMNS if row["series"] == "layer"]


def layer_row(layer: int, step: int) -> list[float]:
    """One validation: [step, time, a value a column]."""
    control = 1e-4 * 1.05 ** layer
    mse = control * (0.2 + 40 * math.exp(-step / (300 + 10 * layer)))
    linear = 0.2 + 0.5 * math.exp(-step / 400)
    window, sinks = 0.7 * (1 - linear), 0.3 * (1 - linear)
    return [step, BEGAN + step + 5 * layer, mse, mse * 30, control, linear, window, sinks, 0.1, mse * 90, 0.01, 0.0]


def task(name: str, state: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "stage": name.split("/")[0], "block": -1, "first_layer": 0, "num_layers": 0, "state": state,
            "worker": "vm-0", "token": 1, "attempts": 1, "failures": 0, "wasted": 0, "lost_steps": 0, "checkpoint_step": 0, "num_steps": 0,
            "reason": "", "seconds_since_progress": 0.0, "result": None, **fields}


def evaluation(perplexity: float) -> dict[str, Any]:
    columns = {"teacher": {"perplexity": 11.7, "kl": 0.0}, "control": {"perplexity": 13.36, "kl": 0.1399},
               "equal_window": {"perplexity": 12.05, "kl": 0.0431}, "student": {"perplexity": 12.64, "kl": 0.0786}}
    return {"perplexity": perplexity, "columns": columns, "in_domain": True, "gap_closed": 0.413,
            "control": {"window_size": 64, "num_sinks": 4, "equal_window": 162},
            "texts": {"wiki": {"perplexity": 3 * perplexity, "columns": columns, "in_domain": False, "gap_closed": 0.2}}}


def stage(name: str, total: int, **fields: Any) -> dict[str, Any]:
    return {"stage": name, "total": total, "done": 0, "running": 0, "quarantined": 0, "seconds": 90.0, "fraction": 0.0, **fields}


def attempt(token: int, outcome: str, **fields: Any) -> dict[str, Any]:
    started = BEGAN + 100 * token
    return {"token": token, "task": "transfer/b0001", "worker": f"vm-{token % 4}", "host": "vm", "started": started,
            "ended": started + 300 if outcome else 0, "outcome": outcome, "reason": "", "steps": 60, "tokens": 122880,
            "seconds": 31.5, "seconds_waited_on_data": 0.1, "host_bytes": 5e8, "device_bytes": 0, **fields}


def attention(layer: int, head: int) -> dict[str, Any]:
    levels = bytes(max(0, 255 - 4 * abs(row - key)) for row in range(64) for key in range(64))
    coded = base64.b64encode(levels).decode()
    return {"layer": layer, "head": head, "step": 60, "rows": 64, "columns": 64, "softmax": coded, "student": coded}


def snapshot(layers: int = 12, rows: int = 20, per_block: int = 3) -> dict[str, Any]:
    """A run in the middle of its transfer: the last block has not begun, layer 1 keeps softmax, an attempt failed."""
    blocks, last = layers // per_block, (rows - 1) * 20
    begun = [layer for layer in range(layers - per_block) if layer != 1]
    transfers = [task(f"transfer/b{block:04}", "running" if block + 1 < blocks else "waiting", block=block,
                      first_layer=block * per_block, num_layers=per_block, num_steps=last) for block in range(blocks)]
    return {
        "version": "0.1.0+test", "live": True, "id": 17, "columns": COLUMNS,
        "recipe": "seed = 0\n\n[transfer]\nmax_steps = 380\nsoftmax_layers = [1]  # kept\n",
        "status": {
            "command": "status", "format": "status/1", "run": "/runs/smol", "state": "running", "stopping": False, "term": 2,
            "host": "vm", "endpoint": "tcp://127.0.0.1:1", "updated_at": "2026-09-21T14:13:20.000Z", "num_layers": layers,
            "num_blocks": blocks, "elapsed_seconds": 3725.0, "eta_seconds": 812.0, "fraction": 0.62, "warnings": ["vm-1 hangs"],
            "so_far": {"gpu_hours": 12.3, "cost": 41.0}, "to_come": {"gpu_hours": 30.1, "cost": 100.0},
            "stages": [stage("capture", 5, done=5, fraction=1.0, gpu_hours=12.3, memory_bytes=581 << 20, disk_bytes=3 << 30,
                             planned={"stage": "capture", "seconds": 75.0, "gpu_hours": 11.0, "cost": 40.0,
                                      "memory_bytes": 672 << 20, "disk_bytes": 4 << 30}),
                       stage("transfer", blocks, running=blocks - 1, fraction=0.4, eta_seconds=700.0)],
            "tasks": [*transfers, task("evaluate/teacher", "done", result=evaluation(11.7)),
                      task("evaluate/transfer", "done", result=evaluation(12.64))],
            "workers": [{"uuid": "vm-0", "host": "vm", "tokens_per_second": 1500.0}]},
        "history": {
            "series": {
                **{f"layer/{layer}": {"columns": LAYER_COLUMNS, "rows": [layer_row(layer, 20 * i) for i in range(rows)]}
                   for layer in begun},
                "finetune": {"columns": ["loss", "gradient_norm", "learning_rate", "tokens", "seconds", "update_norm/q_proj"],
                             "rows": [[step, BEGAN + step, 1 / step, 0.1, 1e-4, 2048, 4.0, 0.06] for step in range(1, 20)]},
                "finetune/validation": {"columns": ["loss", "cross_entropy", "kl"],
                                        "rows": [[10, BEGAN, 0.1, 2.5, 0.07], [20, BEGAN, 0.09, 2.4, 0.06]]},
                "run": {"columns": ["workers", "running", "disk_free_bytes", "tokens_per_second"],
                        "rows": [[10, BEGAN, 4, 3, 5.5e10, 2900]]}},
            "attempts": [attempt(0, "done", task="capture/b0000/p00"), attempt(1, "failed", reason="shard damaged"),
                         attempt(2, "revoked"), attempt(3, "released"), attempt(4, "")],
            "events": [{"time": BEGAN + 10, "subject": "transfer/b0001", "type": "failed",
                        "text": "failed (corrupt): shard damaged"},
                       {"time": BEGAN + 20, "subject": "", "type": "started", "text": "coordinator started"}],
            "attention": [attention(layer, head) for layer in (0, 2) for head in (0, 1)]},
    }


def report(run: dict[str, Any]) -> str:
    """The page as one file, its parts and the run inlined: as `hedgerow report` puts it together."""
    text = (PAGE / "index.html").read_text(encoding="utf-8")

    def part(name: str) -> str:
        return (CHART if name == "chart.js" else PAGE / name).read_text(encoding="utf-8")

    text = re.sub(r'<link rel="stylesheet" href="/([\w.]+)">', lambda match: f"<style>{part(match[1])}</style>", text)
    data = json.dumps(run).replace("<", "\\u003c")
    text = re.sub(r'<script src="/([\w.]+)"></script>', lambda match: f"<script>{part(match[1])}</script>", text)
    return text.replace("<main ", f'<script type="application/json" id="snapshot">{data}</script>\n<main ', 1)


class PageServer:
    """`run` is what /api/run answers, None: 401. Threads of the server append to `requests`, paths in their order."""

    def __init__(self, run: dict[str, Any] | None):
        self.run, self.requests, self.last_ids = run, [], []
        self._encoded: tuple[Any, int, bytes] = (None, 0, b"")
        self._streams: list[queue.Queue[str | None]] = []
        # what happens between the request of the run and its answer; and whether the answer has it
        self.before_run: Callable[[], None] = lambda: None
        self.holds_event = False
        self._id = 17
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                owner.requests.append(self.path)
                if self.path == "/api/events":
                    owner._stream(self)
                elif self.path == "/api/run":
                    if owner.run is None:
                        self.answer(401, "text/plain", b"no secret")
                    else:
                        body = owner._body()
                        owner.before_run()
                        self.answer(200, "application/json", owner._body() if owner.holds_event else body)
                else:
                    name = "index.html" if self.path == "/" else self.path[1:]
                    file = CHART if name == "chart.js" else PAGE / name
                    if not file.is_file() or "/" in name:
                        self.answer(404, "text/plain", b"no such page")
                    else:
                        self.answer(200, TYPES[Path(name).suffix], file.read_bytes())

            def answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", CSP)
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> PageServer:
        if self.run is not None:
            self._body()  # encoded before it is asked for: how fast Python does it is nobody's question
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.hang_up()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _body(self) -> bytes:
        if self._encoded[0] is not self.run or self._encoded[1] != self._id:
            self._encoded = (self.run, self._id, json.dumps({**self.run, "id": self._id}).encode())  # type: ignore[dict-item]
        return self._encoded[2]

    def _stream(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.last_ids.append(handler.headers.get("Last-Event-ID"))
        if self.run is None:
            handler.answer(401, "text/plain", b"no secret")  # type: ignore[attr-defined]
            return
        stream: queue.Queue[str | None] = queue.Queue()
        self._streams.append(stream)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"retry: 200\n\n")
        handler.wfile.flush()
        while (text := stream.get()) is not None:
            try:
                handler.wfile.write(text.encode())
                handler.wfile.flush()
            except OSError:
                break
        handler.close_connection = True

    def send(self, kind: str, data: Any) -> None:
        """An event to every page that is open."""
        self._id += 1
        for stream in self._streams:
            stream.put(f"id: {self._id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n")

    def hang_up(self) -> None:
        """Ends every stream, as a coordinator that dies does."""
        for stream in self._streams:
            stream.put(None)
        self._streams.clear()
