// What every part of the page uses: numbers and times as people read them, tables that change in
// place, colours. Strings of a run come from outside (a worker names itself): they reach the page
// through textContent alone.
'use strict';

const NONE = '\u2013';  // where nothing was measured

function byId(id) {
  return document.getElementById(id);
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function isNumber(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

// Three digits that count; powers of ten where there would be many zeros.
function shown(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace('e+', 'e');
  if (size >= 1000) return Math.round(value).toLocaleString('en-US');
  return size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toPrecision(3);
}

// The same for an axis, whose numbers are round.
function shortly(value) {
  const size = Math.abs(value), rounded = Number(value.toPrecision(3));
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? rounded.toExponential().replace('e+', 'e') : String(rounded);
}

function percent(value, digits = 0) {
  return isNumber(value) ? (100 * value).toFixed(digits) + ' %' : NONE;
}

function bytes(value) {
  if (!isNumber(value) || value <= 0) return NONE;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; unit += 1) value /= 1024;
  return value.toFixed(value >= 100 || unit === 0 ? 0 : 1) + ' ' + units[unit];
}

function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return NONE;
  if (seconds < 10) return seconds.toFixed(1) + ' s';
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, '0');
  if (whole < 60) return whole + ' s';
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

// Local time, with the day where `near` (seconds) is of another day. Without seconds for axes.
function clock(seconds, near = Date.now() / 1000, withSeconds = true) {
  if (!isNumber(seconds) || seconds <= 0) return NONE;
  const date = new Date(seconds * 1000), two = (n) => String(n).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}` + (withSeconds ? `:${two(date.getSeconds())}` : '');
  if (date.toDateString() === new Date(near * 1000).toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

// Makes `parent` have `count` children of `tag`, keeping those it has.
function keepChildren(parent, count, tag) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(document.createElement(tag));
}

// Brings a table's body to `rows`, in place, so that focus, selection and scroll stay. A cell is a
// string, or {text, className, title, fraction (a bar), press (a function: the text is a button)}.
// A row may carry `rowClass`.
function fillTable(body, rows) {
  keepChildren(body, rows.length, 'tr');
  rows.forEach((cells, i) => {
    const line = body.children[i];
    if (line.className !== (cells.rowClass || '')) line.className = cells.rowClass || '';
    keepChildren(line, cells.length, 'td');
    cells.forEach((cell, j) => fillCell(line.children[j], typeof cell === 'string' ? {text: cell} : cell));
  });
}

function fillCell(place, cell) {
  const kind = cell.fraction !== undefined ? 'bar' : cell.press ? 'button' : 'text';
  if (place.dataset.kind !== kind) {
    place.replaceChildren();
    place.dataset.kind = kind;
    if (kind === 'bar') {
      const bar = make('div', 'bar');
      bar.setAttribute('role', 'progressbar');
      bar.setAttribute('aria-valuemin', '0');
      bar.setAttribute('aria-valuemax', '100');
      bar.append(make('i'));
      place.append(bar);
    } else if (kind === 'button') {
      const button = make('button', 'link');
      button.type = 'button';
      place.append(button);
    }
  }
  if (place.className !== (cell.className || '')) place.className = cell.className || '';
  if (place.title !== (cell.title || '')) place.title = cell.title || '';
  if (kind === 'bar') {
    setBar(place.firstChild, cell.fraction, cell.label);
  } else if (kind === 'button') {
    setText(place.firstChild, cell.text);
    place.firstChild.onclick = cell.press;
  } else {
    setText(place, cell.text);
  }
}

function setBar(bar, fraction, label) {
  const part = Math.min(1, Math.max(0, fraction || 0));
  bar.setAttribute('aria-valuenow', String(Math.round(100 * part)));
  if (label) bar.setAttribute('aria-label', label);
  bar.firstElementChild.style.width = (100 * part).toFixed(1) + '%';
}

function number(text, title) {
  return {text, title, className: 'number'};
}

// [{name, value, title}] as the pairs of a description list.
function fillList(list, pairs) {
  keepChildren(list, pairs.length, 'div');
  pairs.forEach(({name, value, title}, i) => {
    const pair = list.children[i];
    if (!pair.firstChild) pair.append(make('dt'), make('dd'));
    setText(pair.firstChild, name);
    setText(pair.lastChild, value);
    pair.title = title || '';
  });
}

// Options of a select: [[value, text]]; what is chosen stays chosen.
function fillSelect(select, options, chosen) {
  keepChildren(select, options.length, 'option');
  options.forEach(([value, text], i) => {
    select.children[i].value = value;
    setText(select.children[i], text);
  });
  if (chosen !== undefined && select.value !== String(chosen)) select.value = String(chosen);
}

// A colour of the style sheet, light or dark as the page is.
function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

// Eleven stops of viridis: even in lightness, told apart by colour-blind eyes.
const VIRIDIS = ['440154', '482475', '414487', '355f8d', '2a788e', '21918c', '22a884', '44bf70', '7ad151', 'bddf26',
  'fde725'].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

// 256 colours as the little-endian words of ImageData.
const PALETTE = Uint32Array.from({length: 256}, (_, i) => {
  const at = (i / 255) * (VIRIDIS.length - 1), low = Math.min(VIRIDIS.length - 2, Math.floor(at)), part = at - low;
  const [r, g, b] = [0, 1, 2].map((c) => Math.round(VIRIDIS[low][c] * (1 - part) + VIRIDIS[low + 1][c] * part));
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
});

// A canvas of so many CSS pixels, sharp on the screen; returns its context in CSS pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px ' + themed('font');
  context.textBaseline = 'middle';
  return context;
}

// Round steps of an axis from low to high, about `wanted` of them.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= raw) || 1;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

// A colour bar with its ends and the powers of ten between them.
function drawScale(canvas, low, high, isLog, form) {
  const width = Math.min(300, canvas.parentElement.clientWidth), height = 30, context = sized(canvas, width, height);
  const left = 2, right = width - 2;
  const image = new ImageData(256, 1);
  new Uint32Array(image.data.buffer).set(PALETTE);
  const strip = document.createElement('canvas');
  [strip.width, strip.height] = [256, 1];
  strip.getContext('2d').putImageData(image, 0, 0);
  context.drawImage(strip, left, 0, right - left, 10);
  if (low === high) return;
  context.fillStyle = themed('muted');
  const of = isLog ? Math.log10 : Number;
  const place = (value) => left + (right - left) * (of(value) - of(low)) / (of(high) - of(low));
  const powers = () => ticks(Math.ceil(of(low)), Math.floor(of(high)), 4).filter(Number.isInteger).map((power) => 10 ** power);
  const inner = isLog ? powers() : ticks(low, high, 4);
  let free = -Infinity;
  const put = (value, limit) => {
    const text = form(value), half = context.measureText(text).width / 2;
    const x = Math.min(right - half, Math.max(left + half, place(value)));
    if (x - half < free || x + half > limit) return;
    context.fillRect(place(value) - 0.5, 10, 1, 4);
    context.fillText(text, x - half, 22);
    free = x + half + 8;
  };
  const end = form(high), endWidth = context.measureText(end).width;
  put(low, right);
  for (const value of inner) if (value > low && value < high) put(value, right - endWidth - 8);
  put(high, Infinity);
}
