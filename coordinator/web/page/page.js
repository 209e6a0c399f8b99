// Holds the run that the page shows, fetches it, follows its events and draws. A report carries its
// run in itself (#snapshot) and asks no server. Redraws come at most once in 500 ms, and none while
// the page is hidden.
'use strict';

const REDRAW_MS = 500;
const MAX_ROWS = 1024;  // of a series that grows while the page is open; then every second one goes
const MAX_EVENTS = 5000;

const FIRST_METRIC = 'relative_mse';

const run = {
  snapshot: {},
  status: {},
  isLive: false,
  series: new Map(),
  attempts: new Map(),
  events: [],
  attention: new Map(),
  columns: [],  // what series' columns are: the coordinator's table
  metrics: {},  // what the heat map can show: {label, isLog, of: of what reads a column}
  numLayers: 0,
  kept: new Set(),
  layers: [],  // of the last drawing
  layer: -1,
  metric: FIRST_METRIC,
  order: {field: 'layer', isDown: false},
  shownMap: {},  // what the viewer chose
  now() {
    return this.isLive ? Date.now() / 1000 : Date.parse(this.status.updated_at) / 1000
      || [...this.attempts.values()].reduce((last, {started, ended}) => Math.max(last, started, ended), 0);
  },
};

// What is known of the run. -------------------------------------------------------------------------

function take(snapshot) {
  run.snapshot = snapshot;
  run.isLive = snapshot.live === true;
  run.series.clear();
  run.attempts.clear();
  run.attention.clear();
  run.events = [];
  takeColumns(snapshot.columns || []);
  // layers that the recipe keeps under softmax; a comment may follow the list
  const list = /^\s*softmax_layers\s*=\s*\[([^\]]*)\]/m.exec(snapshot.recipe || '');
  run.kept = new Set(list ? (list[1].match(/\d+/g) || []).map(Number) : []);
  takeStatus(snapshot.status || {});
  takeHistory(snapshot.history || {});
}

function takeColumns(columns) {
  run.columns = columns;
  run.metrics = {};
  const shown = columnsOf(run, 'layer').filter(({heat}) => heat);
  for (const {name, label, log} of shown.sort(
           (a, b) => (b.name === FIRST_METRIC) - (a.name === FIRST_METRIC))) {
    run.metrics[name] = {label, isLog: log, of: (get) => get(name)};
    if (name === 'mse')
      run.metrics.ratio = {label: 'MSE / control\'s MSE', isLog: true, of: ratioOf};
  }
  fillSelect(
      byId('metric'),
      Object.entries(run.metrics).map(([key, {label}]) => [key, label]),
      run.metric);
}

function takeStatus(status) {
  run.status = status;
}

function takeHistory({series = {}, attempts = [], events = [], attention = []}) {
  for (const [name, {columns, rows}] of Object.entries(series)) {
    let known = run.series.get(name);
    if (!known || known.columns.join() !== columns.join()) {
      known = {columns, rows: known ? widened(known, columns) : []};
      run.series.set(name, known);
    }
    for (const row of rows) {
      // an attempt that began again: what stands at that step and after it has not happened
      while (known.rows.length > 0 && known.rows[known.rows.length - 1][0] >= row[0]) known.rows.pop();
      known.rows.push(row);
    }
    while (known.rows.length > MAX_ROWS) known.rows = known.rows.filter((_, i, all) => i % 2 === (all.length - 1) % 2);
  }
  for (const attempt of attempts) run.attempts.set(attempt.token, attempt);
  run.events = run.events.concat(events).slice(-MAX_EVENTS);
  for (const map of attention) run.attention.set(`${map.layer}/${map.head}`, map);
}

// Rows of a series whose columns have changed, under the new ones.
function widened({columns: old, rows}, columns) {
  const places = columns.map((name) => old.indexOf(name));
  return rows.map((row) => [row[0], row[1], ...places.map((at) => (at < 0 ? null : row[2 + at]))]);
}

// Drawing. ------------------------------------------------------------------------------------------

function choose(layer) {
  run.layer = layer;
  drawHeat();
  drawLayer(run);
  drawLayers(run, choose);
}

const heat = new HeatMap(choose), lanes = new Lanes();

function heatWords(layer, row) {
  const series = run.series.get('layer/' + layer), values = series && series.rows[row], {block} = run.layers[layer];
  const place = `layer ${layer}` + (block >= 0 ? `, block ${block}` : '');
  if (!values) return place + '\n' + (run.kept.has(layer) ? 'softmax kept' : 'not begun');
  const metric = run.metrics[run.metric],
        get = (name) => values[2 + series.columns.indexOf(name)] ?? undefined;
  const lines = [`${place}, step ${values[0]}`, `${metric.label} ${shown(metric.of(get))}`];
  if (run.metric !== 'mse') lines.push(`MSE ${shown(get('mse'))}, control ${shown(get('control_mse'))}`);
  return lines.join('\n');
}

function drawHeat() {
  const metric = run.metrics[run.metric], steps = [], values = [];
  for (let layer = 0; layer < run.numLayers; layer += 1) {
    const series = run.series.get('layer/' + layer), columns = series ? series.columns : [];
    const places = Object.fromEntries(columns.map((name, i) => [name, 2 + i]));
    steps.push(series ? series.rows.map((row) => row[0]) : []);
    values.push(series ? series.rows.map((row) => metric.of((name) => row[places[name]] ?? undefined)) : []);
  }
  const planned = (run.status.tasks || []).filter(({stage}) => stage === 'transfer').map((task) => task.num_steps || 0);
  const maxStep = Math.max(0, ...planned, ...steps.map((row) => (row.length > 0 ? row[row.length - 1] : 0)));
  heat.draw({
    layers: run.numLayers, blocks: run.layers.map(({block}) => block), steps, values, kept: run.kept, chosen: run.layer,
    maxStep, metric, words: heatWords,
  });
  drawScale(byId('heat-scale'), heat.low, heat.high, metric.isLog, shortly);
}

function drawLanes() {
  const left = lanes.draw({attempts: [...run.attempts.values()], now: run.now(), isLive: run.isLive});
  byId('lanes-legend').hidden = run.attempts.size === 0;
  drawLanesLegend(lanes);
  const bound = left > 0 ? `the newest ${MAX_LANES} workers of ${MAX_LANES + left}` : '';
  setText(byId('workers-note'), run.attempts.size === 0 ? 'No attempts yet.' : bound);
}

const SECTIONS = [drawHeader, drawWarnings, drawStages, drawPlan, drawHeat, drawLayer, drawLanes, drawAttempts, drawLora,
  drawQuality, drawAttentionMaps, drawVariants,
  (all) => drawLayers(all, choose), drawEvents, drawProvenance];

function draw() {
  run.numLayers = run.status.num_layers || 0;
  run.layers = layersOf(run);
  if (run.layer < 0 || run.layer >= run.numLayers) {  // none is chosen: the worst that is known
    const errors = run.layers.map((row) => row.relative_mse ?? -1);
    run.layer = errors.indexOf(Math.max(...errors));
  }
  byId('main').hidden = false;
  for (const section of SECTIONS) {
    try {
      section(run);
    } catch (error) {  // one that cannot be drawn must not take the others along
      console.error(error);
    }
  }
  if (performance.getEntriesByName('hedgerow-painted').length === 0) performance.mark('hedgerow-painted');
}

let drawnAt = -Infinity, timer = 0;

function redraw() {
  if (timer || document.hidden) return;
  timer = setTimeout(() => {
    timer = 0;
    if (document.hidden) return;
    drawnAt = performance.now();
    draw();
  }, Math.max(0, drawnAt + REDRAW_MS - performance.now()));
}

// The connection. -----------------------------------------------------------------------------------

function connection(text, kind) {
  setText(byId('connection'), text);
  byId('connection').className = 'connection ' + kind;
}

function message(text) {
  setText(byId('message'), text);
  byId('message').hidden = !text;
}

let source = null;    // the EventSource that counts now
let fetched = false;  // whether `source` has its run; what comes before waits in `queue`
let queue = [];

const OPEN_MS = 300;  // how long the run is not asked for, so that its events are followed before

// Follows the events and fetches the run, in this order: an event between the two would be missed
// otherwise, and one that the run holds already is told by its id.
async function load() {
  const mine = follow(), opened = new Promise((resolve) => {
    mine.addEventListener('open', resolve);
    mine.addEventListener('error', resolve);
    setTimeout(resolve, OPEN_MS);
  });
  await opened;
  if (mine === source) await fetchRun(mine);
}

async function fetchRun(mine) {
  let snapshot;
  try {
    const answer = await fetch('/api/run', {cache: 'no-store'});
    if (mine !== source) return;
    if (answer.status === 401) {
      mine.close();
      source = null;
      connection('not let in', 'lost');
      message('Open the address that \'hedgerow run\' printed: it carries the secret.');
      return;
    }
    if (!answer.ok) throw new Error(`/api/run answered ${answer.status}`);
    snapshot = await answer.json();
  } catch (error) {
    if (mine === source) retry();
    return;
  }
  if (mine !== source) return;
  take(snapshot);
  fetched = true;
  for (const apply of queue.splice(0)) apply();
  message('');
  if (mine.readyState === EventSource.CLOSED) retry();
  else connected(mine);
  redraw();
}

function connected(mine) {
  if (mine.readyState !== EventSource.OPEN) return;
  if (run.isLive) connection('live', 'live');
  else connection('no coordinator', '');
}

function lost() {
  const isOver = ['done', 'partial'].includes(run.status.state);
  if (isOver) run.isLive = false;
  connection(isOver ? 'the run is over' : 'disconnected, retrying', isOver ? '' : 'lost');
}

function retry() {
  if (source) source.close();
  source = null;
  lost();
  setTimeout(() => { if (!source) load(); }, 2000);
}

function follow() {
  if (source) source.close();
  const mine = source = new EventSource('/api/events');
  let hasId = false;
  fetched = false;
  queue = [];
  mine.onopen = () => {
    if (mine !== source) return;
    if (fetched && !hasId) fetchRun(mine);  // it has no id to go on from, so the gap is unknown
    else if (fetched) connected(mine);
  };
  mine.onerror = () => {
    if (mine !== source || !fetched) return;  // fetchRun says why
    if (mine.readyState === EventSource.CLOSED) retry();
    else lost();  // the browser tries again by itself, and goes on from the last id
  };
  const on = (type, take) => mine.addEventListener(type, (event) => {
    if (mine !== source) return;
    hasId = hasId || event.lastEventId !== '';
    const data = JSON.parse(event.data), id = event.lastEventId === '' ? Infinity : Number(event.lastEventId);
    const apply = () => { if (!(id <= run.snapshot.id)) take(data); };
    if (!fetched) {
      queue.push(apply);
      return;
    }
    apply();
    redraw();
  });
  on('status', takeStatus);
  on('history', takeHistory);
  mine.addEventListener('reset', () => { if (mine === source && fetched) load(); });
  return mine;
}

function start() {
  byId('metric').onchange = () => {
    run.metric = byId('metric').value;
    drawHeat();
  };
  byId('layer').onchange = () => choose(Number(byId('layer').value));
  for (const id of ['layer', 'head']) {
    byId('attention-' + id).onchange = (event) => {
      run.shownMap[id] = Number(event.target.value);
      drawAttentionMaps(run);
    };
  }
  document.addEventListener('visibilitychange', redraw);
  window.addEventListener('resize', redraw);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  const inlined = byId('snapshot');
  if (inlined) {
    take(JSON.parse(inlined.textContent));
    run.isLive = false;  // a report stands still, whatever ran when it was written
    connection('report of ' + (run.status.updated_at || 'a run without a coordinator'), '');
    draw();
  } else {
    load();
  }
}

start();
