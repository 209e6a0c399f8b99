// Everything of the page that is words, tables and curves. Each function brings one section to what
// `run` (page.js) holds now, changing in place what differs.
'use strict';

const STAGE_WORDS = {capture: 'capture', logits: 'logits', transfer: 'transfer', assemble: 'assemble', finetune: 'LoRA', evaluate: 'evaluate'};
const MAX_LINES = 200;  // of events and of attempts; more are counted

function nameOf(run) {
  return (run.status.run || '').replace(/\/+$/, '').split('/').pop() || 'hedgerow';
}

// `name` in the last row of a series that has it, or undefined.
function lastOf(series, name) {
  const at = series ? series.columns.indexOf(name) : -1;
  for (let i = at < 0 ? -1 : series.rows.length - 1; i >= 0; i -= 1)
    if (isNumber(series.rows[i][2 + at])) return series.rows[i][2 + at];
  return undefined;
}

function drawHeader(run) {
  const {status} = run, name = nameOf(run), overall = run.series.get('run');
  setText(byId('run'), name);
  byId('run').title = status.run || '';
  document.title = (status.state === 'running' && isNumber(status.fraction) ? percent(status.fraction) + ' ' : '') + name + ' \u00b7 hedgerow';
  setText(byId('state'), status.stopping ? 'stopping' : status.state || '');
  byId('state').className = 'badge ' + (['running', 'done', 'partial', 'stopped'].includes(status.state) ? status.state : '');
  byId('overall').hidden = !isNumber(status.fraction) && status.state !== 'done';
  setBar(byId('overall'), status.state === 'done' ? 1 : status.fraction);
  const working = (status.workers || []).length + (status.workers_left_out || 0);
  const speed = (status.workers || []).reduce((sum, {tokens_per_second: each}) => sum + (each || 0), 0);
  const tiles = [
    {name: 'done', value: status.state === 'done' ? '100 %' : percent(status.fraction)},
    {name: 'elapsed', value: duration(status.elapsed_seconds), title: 'in which any task was under way, over all terms'},
    {name: 'left', value: status.state === 'running' ? duration(status.eta_seconds) : NONE},
    {name: 'layers', value: status.num_layers ? String(status.num_layers) : NONE},
    {name: 'workers', value: working ? String(working) : lastOf(overall, 'workers') && run.isLive ? String(lastOf(overall, 'workers')) : NONE},
    {name: 'tokens/s', value: run.isLive ? shown(speed || lastOf(overall, 'tokens_per_second')) : NONE},
    {name: 'disk free', value: bytes(lastOf(overall, 'disk_free_bytes'))},
  ];
  fillList(byId('tiles'), tiles.filter(({name: tile, value}) => value !== NONE || ['done', 'elapsed', 'left'].includes(tile)));
}

function drawWarnings(run) {
  const list = byId('warnings'), warnings = run.status.warnings || [];
  byId('warnings-section').hidden = warnings.length === 0;
  keepChildren(list, warnings.length, 'li');
  warnings.forEach((text, i) => setText(list.children[i], text));
}

function drawStages(run) {
  fillTable(byId('stages').tBodies[0], (run.status.stages || []).map((stage) => {
    const name = STAGE_WORDS[stage.stage] || stage.stage;
    const more = [stage.running > 0 ? `${stage.running} running` : '', stage.quarantined > 0 ? `${stage.quarantined} quarantined` : ''].filter(Boolean);
    return [name, {fraction: stage.fraction, label: name}, number(`${stage.done}/${stage.total}`),
      number(stage.seconds > 0 && (stage.done > 0 || stage.running > 0) ? duration(stage.seconds) : NONE),
      number(stage.eta_seconds !== undefined ? duration(stage.eta_seconds) : NONE),
      {text: more.join(', '), className: stage.quarantined > 0 ? 'bad' : 'quiet'}];
  }));
}

// Curves by Chart.js. ------------------------------------------------------------------------------

const charts = new Map();  // id -> Chart

function axisOf(isLog, color, line, form) {
  return {
    type: isLog ? 'logarithmic' : 'linear', grid: {color: line, drawBorder: false, tickLength: 4},
    ticks: {
      color, maxTicksLimit: 6, autoSkip: !isLog, maxRotation: 0, font: {size: 11},
      callback: isLog ? (value, i, all) => {
        const mantissa = Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
        return (all.length > 28 ? mantissa === 1 : [1, 2, 5].includes(mantissa)) ? form(value) : null;
      } : form,
    },
  };
}

// A chart in `parent`, made at its first call. lines: [{label, points: [{x, y}], color (a theme's
// name), dash}]; a line without points is left out, a chart without lines hidden. Returns whether
// it shows anything.
function drawChart(parent, id, title, lines, {isLog = false, top} = {}) {
  const usable = lines.map((line) => ({...line, points: line.points.filter(({y}) => isNumber(y) && (!isLog || y > 0))}))
    .filter(({points}) => points.length > 0);
  let figure = byId(id + '-figure');
  if (figure) figure.hidden = usable.length === 0;
  if (usable.length === 0) return false;
  if (!figure) {
    figure = make('figure');
    figure.id = id + '-figure';
    const place = make('div', 'chart'), canvas = make('canvas');
    canvas.id = id;
    canvas.setAttribute('role', 'img');
    place.append(canvas);
    figure.append(make('figcaption', '', title), place);
    parent.append(figure);
  }
  byId(id).setAttribute('aria-label', title + ': ' + usable.map(({label, points}) =>
    `${label} ${shown(points[0].y)} at step ${points[0].x}, ${shown(points[points.length - 1].y)} at step ${points[points.length - 1].x}`).join('; '));
  const muted = themed('muted'), line = themed('line'), first = usable[0].points[0].y;
  const isFlat = !isLog && first > 0 && usable.every(({points}) => points.every(({y}) => y === first));
  const limits = top ? {min: 0, max: top} : isFlat ? {min: 0, max: 2 * first} : {};
  const data = {datasets: usable.map(({label, points, color, dash}) => ({
    label, data: points, borderColor: themed(color), backgroundColor: themed(color), borderWidth: 1.75, borderDash: dash ? [5, 4] : [],
    pointRadius: points.length <= 3 ? 3 : points.length > 40 || dash ? 0 : 2, pointHoverRadius: 4, tension: 0}))};
  const options = {
    animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
    interaction: {mode: 'index', axis: 'x', intersect: false}, layout: {padding: {right: 4}},
    scales: {x: axisOf(false, muted, line, (value) => String(value)), y: {...axisOf(isLog, muted, line, shortly), ...limits}},
    plugins: {
      legend: {display: true, align: 'start', labels: {color: muted, boxWidth: 14, boxHeight: 1, padding: 8, font: {size: 11}}},
      tooltip: {animation: false, callbacks: {title: (items) => 'step ' + items[0].parsed.x, label: (item) => `${item.dataset.label} ${shown(item.parsed.y)}`}},
    },
  };
  options.scales.x.ticks.maxTicksLimit = 7;
  const chart = charts.get(id);
  if (chart) {
    Object.assign(chart, {options});
    chart.data = data;
    chart.update('none');
  } else {
    charts.set(id, new Chart(byId(id), {type: 'line', data, options}));
  }
  return true;
}

function pointsOf(series, name) {
  const at = series ? series.columns.indexOf(name) : -1;
  return at < 0 ? [] : series.rows.map((row) => ({x: row[0], y: row[2 + at]}));
}

function drawLayer(run) {
  const {layer} = run, series = run.series.get('layer/' + layer), place = byId('layer-charts');
  setText(byId('layer-title'), layer >= 0 ? `Layer ${layer}` : 'Layer');
  fillSelect(byId('layer'), Array.from({length: run.numLayers}, (_, i) => [String(i), String(i)]), layer);
  const row = run.layers[layer], has = series && series.rows.length > 0;
  place.hidden = !has;
  setText(byId('layer-note'), !row ? 'No layers yet.' : row.isKept ? 'Keeps softmax attention: nothing to learn.' : !has ? `Nothing measured yet (${row.mark || 'waiting'}).`
    : `block ${row.block >= 0 ? row.block : NONE}, step ${row.step}: relative MSE ${shown(row.relative)}, ${row.mse < row.control ? `${shown(row.control / row.mse)} times below` : 'not below'} the control`
      + (row.mark ? `; ${row.mark}` : ''));
  if (!has) return;
  drawChart(place, 'chart-mse', 'MSE of the attention output', [
    {label: 'student', points: pointsOf(series, 'mse'), color: 'one'},
    {label: 'control (untrained window and sinks)', points: pointsOf(series, 'control_mse'), color: 'two', dash: true}], {isLog: true});
  drawChart(place, 'chart-shares', 'share of the attention mass', [
    {label: 'window', points: pointsOf(series, 'window_share'), color: 'one'}, {label: 'sinks', points: pointsOf(series, 'sink_share'), color: 'two'},
    {label: 'linear', points: pointsOf(series, 'linear_share'), color: 'three'}], {top: 1});
  drawChart(place, 'chart-gradient', 'gradient norm', [{label: 'gradient norm', points: pointsOf(series, 'gradient_norm'), color: 'four'}], {isLog: true});
  drawChart(place, 'chart-rate', 'learning rate', [{label: 'learning rate', points: pointsOf(series, 'learning_rate'), color: 'one'}]);
}

function drawLora(run) {
  const trained = run.series.get('finetune'), checked = run.series.get('finetune/validation'), place = byId('lora-charts');
  const stage = (run.status.stages || []).find(({stage: name}) => name === 'finetune'), has = (trained || checked || {rows: []}).rows.length > 0;
  place.hidden = !has;
  setText(byId('lora-note'), has ? '' : stage ? 'Has not begun.' : 'This recipe ends after the transfer.');
  if (!has) return;
  const norms = (trained ? trained.columns : []).filter((name) => name.startsWith('update_norm/'));
  drawChart(place, 'chart-loss', 'loss', [
    {label: 'training', points: pointsOf(trained, 'loss'), color: 'one'}, {label: 'validation', points: pointsOf(checked, 'loss'), color: 'two'}]);
  const kl = [{label: 'KL to the teacher', points: pointsOf(checked, 'kl'), color: 'three'}];
  const hasKl = drawChart(place, 'chart-kl', 'validation: KL to the teacher, nats a token', kl);
  drawChart(place, 'chart-entropy', 'validation: cross-entropy', hasKl ? [] : [{label: 'cross-entropy', points: pointsOf(checked, 'cross_entropy'), color: 'three'}]);
  drawChart(place, 'chart-lora-gradient', 'gradient norm', [{label: 'gradient norm', points: pointsOf(trained, 'gradient_norm'), color: 'four'}], {isLog: true});
  drawChart(place, 'chart-updates', 'norm of a step\'s update', norms.map((name, i) => (
    {label: name.slice('update_norm/'.length), points: pointsOf(trained, name), color: ['one', 'two', 'three', 'four'][i % 4], dash: i >= 4})), {isLog: true});
}

// Tables. -----------------------------------------------------------------------------------------

// As deploy/huggingface/show_results.py reads the results: the control is that of the last
// evaluation, a text's numbers stand in the same keys as those of the validation part.
function drawQuality(run) {
  const found = {};
  for (const task of run.status.tasks || []) if (task.stage === 'evaluate' && task.result) found[task.id.replace('evaluate/', '')] = task.result;
  const last = found.lora || found.transfer || found.teacher, rows = [];
  byId('quality').hidden = !last;
  setText(byId('quality-note'), last ? 'Control: the untrained model with the student\'s window and sinks. Gap closed: beyond two windows, from the control to the teacher.'
    : 'Nothing evaluated yet.');
  if (!last) return;
  const names = [...new Set([found.lora, found.transfer, found.teacher].flatMap((result) => Object.keys((result && result.texts) || {})))];
  for (const name of ['', ...names]) {
    const [teacher, transfer, lora, here] = [found.teacher, found.transfer, found.lora, last].map((result) => (name && result ? (result.texts || {})[name] : result) || {});
    const column = (result, key) => (result.columns || {})[key] || {};
    const domain = here.in_domain === undefined || here.in_domain === null ? '' : here.in_domain ? ' (in domain)' : ' (not in domain)';
    const nats = (value) => number(isNumber(value) ? value.toFixed(4) : NONE), perplexity = (value) => number(shown(value));
    rows.push([{text: (name || 'validation') + domain, className: 'group clip', title: name}, '', '', '', '']);
    rows.push(['perplexity', perplexity(teacher.perplexity ?? column(here, 'teacher').perplexity), perplexity(column(here, 'control').perplexity),
      perplexity(transfer.perplexity), perplexity(lora.perplexity)]);
    rows.push(['gap closed', number(NONE), number(NONE), number(percent(transfer.gap_closed, 1)), number(percent(lora.gap_closed, 1))]);
    rows.push(['KL to the teacher', number(NONE), nats(column(here, 'control').kl), nats(column(transfer, 'student').kl), nats(column(lora, 'student').kl)]);
  }
  fillTable(byId('quality').tBodies[0], rows);
}

// What is known of each layer now: of the finished task, else of the last row of its history.
function layersOf(run) {
  const rows = Array.from({length: run.numLayers}, (_, layer) => {
    const series = run.series.get('layer/' + layer), get = (name) => lastOf(series, name);
    return {layer, block: -1, isKept: run.kept.has(layer), mark: '', attempts: undefined, linear: get('linear_share'), mse: get('mse'),
      relative: get('relative_mse'), control: get('control_mse'), step: series && series.rows.length > 0 ? series.rows[series.rows.length - 1][0] : undefined};
  });
  for (const task of run.status.tasks || []) {
    if (task.stage !== 'transfer') continue;
    const words = {done: '', running: 'learning', ready: 'ready', waiting: 'waiting', quarantined: 'quarantined', dropped: 'dropped'};
    for (let layer = task.first_layer; layer < task.first_layer + task.num_layers && layer < rows.length; layer += 1)
      Object.assign(rows[layer], {block: task.block, attempts: task.attempts, mark: words[task.state] ?? task.state});
    for (const result of (task.result && task.result.layers) || []) {
      const row = rows[result.layer];
      if (!row) continue;
      Object.assign(row, {mse: result.mse ?? row.mse, relative: result.relative_mse ?? row.relative, control: result.control_mse ?? row.control,
        linear: result.linear_share ?? row.linear, step: result.step ?? row.step});
      if (result.stopped_early) row.mark = 'stopped early';
      if (result.kept_untrained !== undefined) row.mark = result.kept_untrained ? 'kept untrained' : 'behind its control';
    }
  }
  for (const row of rows) if (row.isKept) row.mark = 'softmax kept';
  return rows;
}

const LAYER_COLUMNS = [['layer', 'layer'], ['block', 'block'], ['step', 'step'], ['MSE', 'mse'], ['relative MSE', 'relative'], ['control\'s MSE', 'control'],
  ['MSE / control', 'ratio'], ['linear share', 'linear'], ['attempts', 'attempts']];

function makeLayerHead(run, redraw) {
  const head = byId('layers').tHead.rows[0];
  for (const [title, key] of LAYER_COLUMNS) {
    const cell = make('th', 'number'), button = make('button', '', title);
    cell.scope = 'col';
    button.type = 'button';
    button.onclick = () => {
      run.order = {key, isDown: run.order.key === key ? !run.order.isDown : key !== 'layer'};
      redraw();
    };
    cell.dataset.key = key;
    cell.append(button);
    head.append(cell);
  }
  const mark = make('th', '', 'state');
  mark.scope = 'col';
  head.append(mark);
}

function drawLayers(run, choose) {
  const {key, isDown} = run.order, unknown = isDown ? -Infinity : Infinity;
  for (const cell of byId('layers').tHead.rows[0].cells) {
    const isKey = cell.dataset.key === key;
    cell.setAttribute('aria-sort', isKey ? (isDown ? 'descending' : 'ascending') : 'none');
    if (cell.dataset.key) setText(cell.firstChild, LAYER_COLUMNS.find(([, name]) => name === cell.dataset.key)[0] + (isKey ? (isDown ? ' \u2193' : ' \u2191') : ''));
  }
  const valueOf = (row) => { const value = key === 'ratio' ? row.mse / row.control : row[key]; return isNumber(value) ? value : unknown; };
  const sorted = [...run.layers].sort((a, b) => {
    const [left, right] = [valueOf(a), valueOf(b)];
    return left === right ? a.layer - b.layer : (left < right ? -1 : 1) * (isDown ? -1 : 1);
  });
  fillTable(byId('layers').tBodies[0], sorted.map((row) => {
    const isBehind = row.mse > row.control;
    const cells = [{text: String(row.layer), className: 'number', press: () => choose(row.layer), title: 'show its curves'}, number(row.block >= 0 ? String(row.block) : NONE),
      number(row.step === undefined ? NONE : String(row.step)), number(shown(row.mse)), number(shown(row.relative)), number(shown(row.control)),
      {...number(shown(row.mse / row.control)), className: isBehind ? 'number bad' : 'number'}, number(percent(row.linear, 1)),
      number(row.attempts ? String(row.attempts) : NONE), {text: row.mark, className: ['quarantined', 'behind its control'].includes(row.mark) ? 'bad' : 'quiet'}];
    cells.rowClass = row.layer === run.layer ? 'chosen' : '';
    return cells;
  }));
}

function drawAttempts(run) {
  const newest = [...run.attempts.values()].sort((a, b) => b.token - a.token), now = run.now();
  setText(byId('attempts-note'), newest.length > MAX_LINES ? `The newest ${MAX_LINES} of ${newest.length}.` : newest.length === 0 ? 'No attempts yet.' : '');
  fillTable(byId('attempts').tBodies[0], newest.slice(0, MAX_LINES).map((attempt) => [
    attempt.task, {text: attempt.worker, className: 'clip', title: attempt.worker}, {text: attempt.host || '', className: 'clip', title: attempt.host},
    clock(attempt.started, now), number(duration((attempt.ended || now) - attempt.started)),
    {text: attempt.outcome || 'running', className: ['failed', 'revoked'].includes(attempt.outcome) ? 'bad' : ''},
    number(attempt.steps ? String(attempt.steps) : NONE), number(attempt.tokens && attempt.seconds ? shown(attempt.tokens / attempt.seconds) : NONE),
    number(attempt.seconds ? percent(attempt.seconds_waited_on_data / attempt.seconds, 1) : NONE), number(bytes(attempt.host_bytes)), number(bytes(attempt.device_bytes)),
    {text: attempt.reason || '', className: 'wrap'}]));
}

// A key of the lanes' colours and shapes.
function drawLanesLegend(lanes) {
  const legend = byId('lanes-legend'), outcomes = {failed: 'failed', revoked: 'revoked', released: 'given back'};
  if (!legend.firstChild) {
    for (const [stage, color] of Object.entries(STAGE_COLORS)) {
      const swatch = make('i', 'swatch'), key = make('span', 'key');
      swatch.style.background = color;
      key.append(swatch, STAGE_WORDS[stage]);
      legend.append(key);
    }
    for (const text of Object.values(outcomes)) {
      const key = make('span', 'key');
      key.append(make('canvas'), text);
      legend.append(key);
    }
  }
  legend.querySelectorAll('canvas').forEach((canvas, i) => lanes.key(canvas, Object.keys(outcomes)[i]));
}

function drawEvents(run) {
  const {events, status} = run, now = run.now(), newest = events.slice(-MAX_LINES).reverse();
  const count = (outcome) => [...run.attempts.values()].filter((attempt) => attempt.outcome === outcome).length;
  const lost = (status.tasks || []).reduce((sum, task) => sum + (task.lost_steps || 0), 0), restarts = Math.max(0, (status.term || 0) - 1);
  const one = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
  setText(byId('faults'), `${one(run.attempts.size, 'attempt')}: ${count('failed')} failed, ${count('revoked')} revoked; ${one(lost, 'step')} computed again; coordinator restarted ${one(restarts, 'time')}`);
  setText(byId('events-note'), events.length === 0 ? 'No events yet.' : events.length > MAX_LINES ? `The newest ${MAX_LINES} of ${events.length}.` : '');
  fillTable(byId('events').tBodies[0], newest.map((event) => [
    {text: clock(event.time, now), className: 'quiet', title: new Date(event.time * 1000).toISOString()}, {text: event.subject || 'run', className: 'clip', title: event.subject},
    {text: event.text || event.type || '', className: ['failed', 'revoked', 'quarantined', 'expired'].includes(event.type) ? 'wrap bad' : 'wrap'}]));
}

function drawProvenance(run) {
  const {status, snapshot} = run;
  const pairs = [
    {name: 'hedgerow', value: snapshot.version || NONE}, {name: 'run directory', value: status.run || NONE},
    {name: 'coordinator', value: status.host ? `${status.host}, term ${status.term}` : status.term ? `none now, ${status.term} before` : NONE},
    {name: 'state of', value: status.updated_at || NONE},
    ...Object.entries(snapshot.provenance || {}).map(([name, value]) => ({name, value: typeof value === 'string' ? value : JSON.stringify(value)})),
  ];
  fillList(byId('provenance'), pairs);
  setText(byId('recipe'), snapshot.recipe || '');
}

function drawAttentionMaps(run) {
  const layers = [...new Set([...run.attention.values()].map(({layer}) => layer))].sort((a, b) => a - b), has = layers.length > 0;
  for (const id of ['attention-choice', 'attention-maps', 'attention-legend']) byId(id).hidden = !has;
  if (!has) setText(byId('attention-note'), 'No layer has written one: the transfer does for a few layers.');
  if (!has) return;
  if (!layers.includes(run.shownMap.layer)) run.shownMap.layer = layers[0];
  const heads = [...run.attention.values()].filter(({layer}) => layer === run.shownMap.layer).map(({head}) => head).sort((a, b) => a - b);
  if (!heads.includes(run.shownMap.head)) run.shownMap.head = heads[0];
  fillSelect(byId('attention-layer'), layers.map((layer) => [String(layer), String(layer)]), run.shownMap.layer);
  fillSelect(byId('attention-head'), heads.map((head) => [String(head), String(head)]), run.shownMap.head);
  const map = run.attention.get(`${run.shownMap.layer}/${run.shownMap.head}`);
  setText(byId('attention-note'), `Weights on the first validation sequence at step ${map.step}; queries down, keys across, log scale.`);
  for (const side of ['softmax', 'student']) {
    drawAttention(byId('attention-' + side), map, map[side]);
    byId('attention-' + side).setAttribute('aria-label', `attention weights of layer ${map.layer}, head ${map.head}, ${side}`);
  }
  drawScale(byId('attention-scale'), 1e-4, 1, true, (value) => (value <= 1e-4 ? '\u2264 0.0001' : String(value)));
}
