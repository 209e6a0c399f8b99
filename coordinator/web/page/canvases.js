// The drawings that are canvases: heat map of layers by steps, lanes of workers, attention maps.
// Each paints all it was given in milliseconds and lays what follows the mouse or the keys over it.
'use strict';

// A hatched fill, for what has no value.
function hatch(context, ground, line, gap) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = gap;
  const pen = tile.getContext('2d');
  if (ground) {
    pen.fillStyle = ground;
    pen.fillRect(0, 0, gap, gap);
  }
  pen.strokeStyle = line;
  pen.beginPath();
  for (const shift of [-gap, 0, gap]) {
    pen.moveTo(shift, gap);
    pen.lineTo(shift + gap, 0);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}

// The words of a place beside it, inside the box.
function placeTip(tip, box, text, x, y) {
  tip.hidden = !text;
  if (!text) return;
  setText(tip, text);
  const above = y - tip.offsetHeight - 10, below = y + 16;
  tip.style.left = Math.max(0, Math.min(x + 14, box.clientWidth - tip.offsetWidth)) + 'px';
  tip.style.top = (below + tip.offsetHeight > box.offsetHeight && above > 0 ? above : below) + 'px';
}

// What heat map and lanes share: a drawing under a cursor that the mouse and the keys move.
class Chartboard {
  constructor(name) {
    this.canvas = byId(name);
    this.box = byId(name + '-box');
    this.tip = byId(name + '-tip');
    this.live = byId(name + '-live');
    this.under = document.createElement('canvas');
    this.cursor = null;
    this.canvas.addEventListener('mousemove', ({offsetX: x, offsetY: y}) => this.point(this.at(x, y), x, y));
    this.canvas.addEventListener('mouseleave', () => this.point(null));
    this.canvas.addEventListener('blur', () => this.point(null));
    this.canvas.addEventListener('focus', () => {
      if (this.canvas.matches(':focus-visible')) this.moveTo(this.cursor || this.first());
    });
    this.canvas.addEventListener('click', ({offsetX: x, offsetY: y}) => this.choose(this.at(x, y)));
    this.canvas.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const here = this.cursor || this.first();
      if (!here) return;
      if (event.key === 'Enter' || event.key === ' ') {
        this.choose(here);
      } else if (event.key === 'Escape') {
        this.point(null);
      } else {
        const there = this.moved(here, event.key);
        if (there === undefined) return;
        this.moveTo(there);
      }
      event.preventDefault();
    });
  }

  choose() {}

  moveTo(cursor) {
    if (!cursor) return;
    this.point(cursor, ...this.middle(cursor));
    setText(this.live, this.describe(cursor).replace(/\n/g, ', '));
  }

  point(cursor, x, y) {
    this.cursor = cursor;
    this.lay();
    placeTip(this.tip, this.box, cursor ? this.describe(cursor) : '', x, y);
  }

  // Copies the drawing and puts the cursor over it.
  lay() {
    if (!this.width) return;
    const context = sized(this.canvas, this.width, this.height);
    context.drawImage(this.under, 0, 0, this.width, this.height);
    this.over(context);
  }

  frame(context, x, y, width, height) {
    for (const [color, size] of [['cursor-edge', 3], ['cursor', 1.25]]) {
      context.strokeStyle = themed(color);
      context.lineWidth = size;
      context.strokeRect(x, y, width, height);
    }
  }
}

// A row a layer, downwards; a cell a validation, around its step.
class HeatMap extends Chartboard {
  constructor(choose) {
    super('heat');
    this.onChoose = choose;
  }

  // model: {layers, blocks: [block of a layer], steps: [[step] of a layer], values: [[value]],
  // kept: Set of layers, chosen, maxStep, metric: {label, isLog}, words(layer, row)}
  draw(model) {
    this.model = model;
    this.width = this.box.clientWidth;
    if (model.layers === 0 || this.width === 0) return;
    this.left = 34;
    this.right = this.width > 480 ? 56 : 4;
    this.row = Math.max(4, Math.min(17, Math.floor(560 / model.layers)));
    this.plotWidth = this.width - this.left - this.right;
    this.plotHeight = this.row * model.layers;
    this.top = 6;
    this.height = this.top + this.plotHeight + 34;
    const context = sized(this.under, this.width, this.height);
    context.translate(0, this.top);
    this.scale();
    this.cells(context);
    this.axes(context);
    if (this.cursor && this.cursor.layer >= model.layers) this.cursor = null;
    this.lay();
  }

  scale() {
    const {steps, values, metric, maxStep} = this.model;
    let low = Infinity, high = -Infinity;
    for (const row of values) {
      for (const value of row) {
        if (!isNumber(value) || (metric.isLog && value <= 0)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (low > high) [low, high] = metric.isLog ? [1e-4, 1] : [0, 1];
    if (!metric.isLog) [low, high] = [Math.min(0, low), Math.max(high, low + 1e-9)];
    if (metric.isLog && high < low * 1.01) [low, high] = [low / 1.5, high * 1.5];
    [this.low, this.high] = [low, high];
    const longest = steps.reduce((a, b) => (b.length > a.length ? b : a), []), gaps = longest.length - 1;
    this.gap = Math.max(1, gaps > 0 ? (longest[gaps] - longest[0]) / gaps : maxStep / 20);  // steps between validations
    this.maxStep = Math.max(1, maxStep);
  }

  level(value) {
    if (!isNumber(value)) return -1;
    const {isLog} = this.model.metric, of = isLog ? Math.log : Number;
    if (isLog && value <= 0) return 0;
    const part = (of(value) - of(this.low)) / (of(this.high) - of(this.low));
    return Math.max(0, Math.min(255, Math.round(255 * part)));
  }

  x(step) {  // CSS pixels from the left edge of the plot
    return this.plotWidth * (step + this.gap / 2) / (this.maxStep + this.gap);
  }

  // Where the cell of a row begins and ends.
  edges(steps, row) {
    const step = steps[row], last = steps.length - 1;
    const from = row > 0 ? (steps[row - 1] + step) / 2 : step - this.gap / 2;
    const to = row < last ? (step + steps[row + 1]) / 2 : step + this.gap / 2;
    return [this.x(from), this.x(to)];
  }

  cells(context) {
    const {layers, steps, values, kept} = this.model;
    const ratio = window.devicePixelRatio || 1, width = Math.max(1, Math.round(this.plotWidth * ratio));
    const image = new ImageData(width, layers), pixels = new Uint32Array(image.data.buffer);
    for (let layer = 0; layer < layers; layer += 1) {
      for (let i = 0; i < steps[layer].length; i += 1) {
        const level = this.level(values[layer][i]), start = layer * width;
        if (level < 0) continue;
        const [left, right] = this.edges(steps[layer], i).map((x) => Math.round(x * ratio));
        const from = Math.min(Math.max(0, left), width - 1), to = Math.min(Math.max(from + 1, right), width);
        pixels.fill(PALETTE[level], start + from, start + to);
      }
    }
    const strip = document.createElement('canvas');
    [strip.width, strip.height] = [width, layers];
    strip.getContext('2d').putImageData(image, 0, 0);
    const absent = themed('absent'), lines = hatch(context, absent, themed('hatch'), 6);
    for (let layer = 0; layer < layers; layer += 1) {
      if (!kept.has(layer) && steps[layer].length > 0) continue;
      context.fillStyle = kept.has(layer) ? lines : absent;
      context.fillRect(this.left, layer * this.row, this.plotWidth, this.row - (this.row > 6 ? 1 : 0));
    }
    context.imageSmoothingEnabled = false;
    context.drawImage(strip, this.left, 0, this.plotWidth, this.plotHeight);
    if (this.row > 6) {  // a hair between rows
      context.fillStyle = themed('surface');
      for (let y = this.row; y <= this.plotHeight; y += this.row) context.fillRect(this.left, y - 1, this.plotWidth, 1);
    }
  }

  axes(context) {
    const {layers, blocks, steps, values} = this.model;
    context.fillStyle = themed('text');
    for (let layer = 1; layer < layers; layer += 1)
      if (blocks[layer] !== blocks[layer - 1]) context.fillRect(this.left - 6, layer * this.row - 1, 6, 1);
    context.fillStyle = themed('muted');
    context.textAlign = 'right';
    const every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * this.row >= 13);
    const middle = (layer) => (layer + 0.5) * this.row;
    for (let layer = 0; layer < layers; layer += every) context.fillText(String(layer), this.left - 8, middle(layer));
    context.textAlign = 'left';
    if (this.right > 20 && this.row >= 11) {  // where each layer is now
      for (let layer = 0; layer < layers; layer += 1) {
        const last = values[layer].length - 1;
        if (last >= 0) context.fillText(shown(values[layer][last]), this.left + this.plotWidth + 6, middle(layer));
      }
    }
    context.textAlign = 'center';
    for (const step of ticks(0, this.maxStep, Math.max(2, this.plotWidth / 110))) {
      const x = this.left + this.x(step), half = context.measureText(String(step)).width / 2;
      context.fillRect(x - 0.5, this.plotHeight, 1, 4);
      context.fillText(String(step), Math.min(x, this.width - half), this.plotHeight + 11);
    }
    context.fillText('optimizer step', this.left + this.plotWidth / 2, this.plotHeight + 26);
    context.textAlign = 'left';
  }

  over(context) {
    const {chosen, layers} = this.model;
    context.translate(0, this.top);
    if (chosen >= 0 && chosen < layers) {
      this.frame(context, this.left, chosen * this.row, this.plotWidth, this.row - (this.row > 6 ? 1 : 0));
      context.fillStyle = themed('accent');
      context.fillRect(0, chosen * this.row, 3, this.row);
    }
    if (!this.cursor) return;
    const {layer, row} = this.cursor, known = this.model.steps[layer];
    const [from, to] = known.length > 0 ? this.edges(known, row) : [0, this.plotWidth];
    this.frame(context, this.left + from, layer * this.row, Math.max(3, to - from), this.row);
  }

  at(x, y) {
    const layer = Math.floor((y - this.top) / this.row), inside = x - this.left;
    if (!this.model || layer < 0 || layer >= this.model.layers || inside < 0 || inside > this.plotWidth) return null;
    const known = this.model.steps[layer], row = known.findIndex((_, i) => this.edges(known, i)[1] >= inside);
    return {layer, row: row < 0 ? Math.max(0, known.length - 1) : row};
  }

  first() {
    return this.model && this.model.layers > 0 ? this.lastOf(Math.max(0, this.model.chosen)) : null;
  }

  lastOf(layer) {
    return {layer, row: Math.max(0, this.model.steps[layer].length - 1)};
  }

  moved({layer, row}, key) {
    const {layers, steps} = this.model, end = (i) => Math.max(0, steps[i].length - 1);
    const to = (other) => {  // the same step, as far as that layer has it
      const next = Math.min(layers - 1, Math.max(0, other)), step = steps[layer][row] || 0;
      const found = steps[next].findIndex((at) => at >= step);
      return {layer: next, row: found < 0 ? end(next) : found};
    };
    return {
      ArrowUp: () => to(layer - 1), ArrowDown: () => to(layer + 1),
      PageUp: () => to(layer - 10), PageDown: () => to(layer + 10),
      ArrowLeft: () => ({layer, row: Math.max(0, row - 1)}),
      ArrowRight: () => ({layer, row: Math.min(end(layer), row + 1)}),
      Home: () => ({layer, row: 0}), End: () => ({layer, row: end(layer)}),
    }[key]?.();
  }

  middle({layer, row}) {
    const known = this.model.steps[layer];
    return [this.left + (known.length > 0 ? this.x(known[row]) : 0), this.top + (layer + 1) * this.row];
  }

  describe({layer, row}) {
    return this.model.words(layer, row);
  }

  choose(cursor) {
    if (cursor) this.onChoose(cursor.layer);
  }
}

const STAGE_COLORS = {
  capture: '#56b4e9', logits: '#cc79a7', transfer: '#009e73', assemble: '#8c8c8c', finetune: '#e69f00', evaluate: '#0072b2',
};
const MAX_LANES = 200;

function stageOf(task) {
  return task.split('/')[0];
}

// A lane a worker, a bar an attempt. How an attempt ended has a shape beside its colour: a cross
// for failed, a hatched bar for revoked, an open end for given back.
class Lanes extends Chartboard {
  constructor() {
    super('lanes');
    this.bars = [];
  }

  // model: {attempts: [attempt], now: seconds, isLive}; returns how many workers were left out.
  draw(model) {
    const newest = new Map();
    for (const {worker, started} of model.attempts) newest.set(worker, Math.max(started, newest.get(worker) || 0));
    const names = [...newest.keys()].sort((a, b) => newest.get(b) - newest.get(a)).slice(0, MAX_LANES)
      .sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
    const lane = new Map(names.map((name, i) => [name, i]));
    this.width = this.box.clientWidth;
    this.row = Math.max(14, Math.min(24, Math.floor(320 / Math.max(1, names.length))));
    this.height = names.length * this.row + 24;
    this.left = Math.min(130, Math.round(this.width * 0.24));
    this.lines = null;  // of the colours that hold now
    this.box.parentElement.hidden = names.length === 0;
    if (this.width === 0 || names.length === 0) return newest.size - names.length;
    const shownAttempts = model.attempts.filter(({worker}) => lane.has(worker));
    this.now = model.now;
    this.from = shownAttempts.reduce((low, {started}) => Math.min(low, started), model.now);
    const isOpen = model.isLive || shownAttempts.some(({ended}) => !ended);
    this.to = shownAttempts.reduce((high, {ended}) => Math.max(high, ended), isOpen ? model.now : 0);
    this.to = Math.max(this.to, this.from + 1);
    this.plotWidth = this.width - this.left - 8;
    this.bars = shownAttempts.map((attempt) => {
      const x = this.x(attempt.started);
      return {attempt, lane: lane.get(attempt.worker), x, width: Math.max(1.5, this.x(attempt.ended || this.now) - x)};
    }).sort((a, b) => a.lane - b.lane || a.x - b.x);
    if (this.cursor) this.cursor = this.bars.find(({attempt}) => attempt.token === this.cursor.attempt.token) || null;
    const context = sized(this.under, this.width, this.height);
    this.grid(context, names, model.isLive);
    for (const bar of this.bars) this.bar(context, bar);
    this.lay();
    return newest.size - names.length;
  }

  x(time) {
    return this.left + this.plotWidth * (time - this.from) / (this.to - this.from);
  }

  grid(context, names, isLive) {
    const bottom = names.length * this.row;
    context.fillStyle = themed('muted');
    names.forEach((name, i) => {
      let text = name;
      while (text.length > 1 && context.measureText(text).width > this.left - 8) text = text.slice(0, -2) + '\u2026';
      context.fillText(text, 0, (i + 0.5) * this.row);
    });
    context.textAlign = 'center';
    for (const passed of ticks(0, this.to - this.from, Math.max(2, this.plotWidth / 130))) {
      const x = this.x(this.from + passed), text = clock(this.from + passed, this.to, this.to - this.from < 600);
      context.fillStyle = themed('line');
      context.fillRect(x - 0.5, 0, 1, bottom + 4);
      context.fillStyle = themed('muted');
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(this.width - half, Math.max(half, x)), bottom + 14);
    }
    context.textAlign = 'left';
    if (!isLive) return;
    context.fillStyle = themed('bad');
    context.fillRect(this.x(this.now) - 0.75, 0, 1.5, bottom);
  }

  bar(context, {attempt, lane, x, width}) {
    const y = lane * this.row + 2, height = this.row - 4;
    context.fillStyle = STAGE_COLORS[stageOf(attempt.task)] || '#8c8c8c';
    context.fillRect(x, y, Math.max(1, width - 0.75), height);
    if (attempt.outcome === 'revoked') {
      this.lines = this.lines || hatch(context, null, themed('surface'), 5);
      context.fillStyle = this.lines;
      context.fillRect(x, y, width, height);
    }
    if (attempt.outcome === 'released' && width > 6) {
      context.fillStyle = themed('surface');
      context.fillRect(x + width - 4, y + 2, 4, height - 4);
    }
    if (attempt.outcome !== 'failed') return;
    const reach = Math.min(5, height / 2), end = x + width, middle = y + height / 2;
    for (const [color, size] of [['surface', 5], ['bad', 2]]) {
      context.strokeStyle = themed(color);
      context.lineWidth = size;
      context.beginPath();
      context.moveTo(end - reach, middle - reach);
      context.lineTo(end + reach, middle + reach);
      context.moveTo(end - reach, middle + reach);
      context.lineTo(end + reach, middle - reach);
      context.stroke();
    }
  }

  // How an attempt ended, as the bars show it.
  key(canvas, outcome) {
    this.row = this.row || 16;
    this.bar(sized(canvas, 24, this.row), {attempt: {task: 'transfer', outcome}, lane: 0, x: 1, width: 16});
  }

  over(context) {
    if (!this.cursor) return;
    const {x, width, lane} = this.cursor;
    this.frame(context, x, lane * this.row + 2, width, this.row - 4);
  }

  at(x, y) {
    const lane = Math.floor(y / this.row);
    return this.bars.filter((bar) => bar.lane === lane && x >= bar.x - 2 && x <= bar.x + bar.width + 2).pop() || null;
  }

  first() {
    return this.bars[this.bars.length - 1] || null;
  }

  moved(here, key) {
    const at = this.bars.indexOf(here), last = this.bars.length - 1;
    const beside = (lane) => {
      const found = this.bars.filter((bar) => bar.lane === lane), far = (bar) => Math.abs(bar.x - here.x);
      return found.reduce((best, bar) => (far(bar) < far(best) ? bar : best), found[0] || here);
    };
    return {
      ArrowLeft: () => this.bars[Math.max(0, at - 1)], ArrowRight: () => this.bars[Math.min(last, at + 1)],
      ArrowUp: () => beside(here.lane - 1), ArrowDown: () => beside(here.lane + 1),
      Home: () => this.bars[0], End: () => this.bars[last],
    }[key]?.();
  }

  middle({x, width, lane}) {
    return [x + Math.min(width, 20), (lane + 1) * this.row - 4];
  }

  describe({attempt}) {
    const took = duration((attempt.ended || this.now) - attempt.started), began = clock(attempt.started, this.to);
    const lines = [`${attempt.task}, ${attempt.worker}`, `${attempt.outcome || 'running'}, ${began}, ${took}`];
    if (attempt.tokens > 0 && attempt.seconds > 0) lines.push(`${shown(attempt.tokens / attempt.seconds)} tokens/s`);
    if (attempt.reason) lines.push(attempt.reason);
    return lines.join('\n');
  }
}

// One attention map: bytes on a log scale, drawn a pixel a weight and stretched by the style sheet. Keys
// after a row's last query have no weight and no colour.
function drawAttention(canvas, {rows, columns}, coded) {
  const levels = Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
  [canvas.width, canvas.height] = [columns, rows];
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < Math.min(levels.length, pixels.length); i += 1) {
    const row = Math.floor(i / columns), key = i % columns;
    if (key * rows < (row + 1) * columns) pixels[i] = PALETTE[levels[i]];
  }
  canvas.getContext('2d').putImageData(image, 0, 0);
}
