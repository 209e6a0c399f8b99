// Everything of the page that is words and tables. Each function brings one section to what `run`
// (page.js) holds now, changing in place what differs.
'use strict';

const STAGE_WORDS = {
  capture: 'capture', logits: 'logits', transfer: 'transfer', assemble: 'assemble', finetune: 'LoRA', evaluate: 'evaluate',
};
const MAX_LINES = 200;  // of events and of attempts; more are counted

// `name` in the last row of a series that has it, or undefined.
function lastOf(series, name) {
  const at = series ? series.columns.indexOf(name) : -1;
  if (at < 0) return undefined;
  for (let i = series.rows.length - 1; i >= 0; i -= 1) if (isNumber(series.rows[i][2 + at])) return series.rows[i][2 + at];
  return undefined;
}

// The rows of the table for one kind of series, "layer" or "finetune".
function columnsOf(run, kind) {
  return run.columns.filter(({series}) => series === kind);
}

// How far a layer is behind its control, below 1 before it. `get`: of what a column holds.
function ratioOf(get) {
  return get('mse') / get('control_mse');
}

function count(n, word) {
  return `${n} ${word}${n === 1 ? '' : 's'}`;
}

// How many are shown of those there are.
function newestOf(n, none) {
  return n === 0 ? none : n > MAX_LINES ? `The newest ${MAX_LINES} of ${n}.` : '';
}

function drawHeader(run) {
  const {status} = run, overall = run.series.get('run'), isDone = status.state === 'done';
  const name = (status.run || '').replace(/\/+$/, '').split('/').pop() || 'hedgerow';
  setText(byId('run'), name);
  byId('run').title = status.run || '';
  const progress = status.state === 'running' && isNumber(status.fraction) ? percent(status.fraction) + ' ' : '';
  document.title = `${progress}${name} \u00b7 hedgerow`;
  setText(byId('state'), status.stopping ? 'stopping' : status.state || '');
  const isColored = ['running', 'done', 'partial', 'stopped'].includes(status.state);
  byId('state').className = isColored ? 'badge ' + status.state : 'badge';
  byId('overall').hidden = !isNumber(status.fraction) && !isDone;
  setBar(byId('overall'), isDone ? 1 : status.fraction);

  const working = status.workers || [];
  const numWorkers = working.length + (status.workers_left_out || 0) || (run.isLive && lastOf(overall, 'workers')) || 0;
  const speed = working.reduce((sum, {tokens_per_second: each}) => sum + (each || 0), 0);
  const always = [
    {name: 'done', value: isDone ? '100 %' : percent(status.fraction)},
    {name: 'elapsed', value: duration(status.elapsed_seconds), title: 'in which any task was under way, over all terms'},
    {name: 'left', value: status.state === 'running' ? duration(status.eta_seconds) : NONE},
  ];
  const known = [
    {name: 'layers', value: status.num_layers ? String(status.num_layers) : NONE},
    {name: 'workers', value: numWorkers ? String(numWorkers) : NONE},
    {name: 'tokens/s', value: run.isLive ? shown(speed || lastOf(overall, 'tokens_per_second')) : NONE},
    {name: 'disk free', value: bytes(lastOf(overall, 'disk_free_bytes'))},
  ].filter(({value}) => value !== NONE);
  fillList(byId('tiles'), [...always, ...known]);
}

function drawWarnings(run) {
  const list = byId('warnings'), warnings = run.status.warnings || [];
  byId('warnings-section').hidden = warnings.length === 0;
  keepChildren(list, warnings.length, 'li');
  warnings.forEach((text, i) => setText(list.children[i], text));
}

function drawStages(run) {
  fillTable(byId('stages').tBodies[0], (run.status.stages || []).map((stage) => {
    const name = STAGE_WORDS[stage.stage] || stage.stage, hasBegun = stage.done > 0 || stage.running > 0, more = [];
    if (stage.running > 0) more.push(`${stage.running} running`);
    if (stage.quarantined > 0) more.push(`${stage.quarantined} quarantined`);
    return [
      name, {fraction: stage.fraction, label: name}, number(`${stage.done}/${stage.total}`),
      number(hasBegun ? duration(stage.seconds) : NONE), number(duration(stage.eta_seconds)),
      {text: more.join(', '), className: stage.quarantined > 0 ? 'bad' : 'quiet'},
    ];
  }));
}

// What each stage has taken beside what it was planned to take; hidden for a run without a plan.
function drawPlan(run) {
  const {so_far: soFar, to_come: toCome} = run.status;
  const stages = (run.status.stages || []).filter(({planned}) => planned);
  byId('plan-section').hidden = stages.length === 0;
  const time = (seconds) => number(seconds > 0 ? duration(seconds) : NONE);
  const hours = (value) => number(value > 0 ? shown(value) : NONE);
  fillTable(byId('plan').tBodies[0], stages.map(({planned, ...stage}) => [
    STAGE_WORDS[stage.stage] || stage.stage, time(stage.seconds), time(planned.seconds),
    number(bytes(stage.memory_bytes)), number(bytes(planned.memory_bytes)),
    number(bytes(stage.disk_bytes)), number(bytes(planned.disk_bytes)),
    hours(stage.gpu_hours), hours(planned.gpu_hours),
  ]));
  const words = ({gpu_hours: gpuHours, cost}) => [gpuHours > 0 ? `${shown(gpuHours)} GPU-hours` : '',
    isNumber(cost) ? `cost ${shown(cost)}` : ''].filter(Boolean).join(', ');
  const spent = [['so far', soFar], ['to come', toCome]].filter(([, each]) => each && words(each));
  setText(byId('plan-note'), spent.map(([when, each]) => `${when} ${words(each)}`).join('; '));
}

const TASK_SUBJECTS = ['teacher', 'control', 'equal_window', 'transfer', 'lora'];  // as the table's columns

// As deploy/huggingface/show_results.py reads the results: the control is that of the last
// evaluation, a text's numbers stand under the same keys as those of the validation part.
function drawQuality(run) {
  const found = {}, rows = [];
  for (const {stage, id, result} of run.status.tasks || [])
    if (stage === 'evaluate' && result) found[id.replace('evaluate/', '')] = result;
  const subjects = [found.lora, found.transfer, found.teacher], last = subjects.find(Boolean);
  const {tasks = {}} = run.status.task_scores || {};
  byId('quality').hidden = !last && Object.keys(tasks).length === 0;
  const {equal_window: window} = (last && last.control) || {};
  setText(byId('quality-note'), last ? 'Control: the untrained model with the student\'s window and sinks. Equal bytes: the same with '
    + `a window ${window ? `of ${window} tokens ` : ''}that takes the bytes of the student's state. Gap closed: beyond two windows, `
    + 'from the control to the teacher.' : 'Nothing evaluated yet.');
  if (byId('quality').hidden) return;
  const none = number(NONE), nats = (value) => number(isNumber(value) ? value.toFixed(4) : NONE);
  const column = (result, name) => (result.columns || {})[name] || {};
  const names = new Set(subjects.flatMap((result) => Object.keys((result && result.texts) || {})));
  for (const name of last ? ['', ...names] : []) {
    const part = (result) => (result && name ? (result.texts || {})[name] : result) || {};
    const [lora, transfer, teacher] = subjects.map(part), here = part(last), control = column(here, 'control');
    const domain = {true: ' (in domain)', false: ' (not in domain)'}[here.in_domain] || '';
    const equal = column(here, 'equal_window');
    rows.push([{text: (name || 'validation') + domain, className: 'group clip', title: name}, '', '', '', '', '']);
    rows.push(['perplexity', ...[teacher.perplexity ?? column(here, 'teacher').perplexity, control.perplexity,
      equal.perplexity, transfer.perplexity, lora.perplexity].map((value) => number(shown(value)))]);
    rows.push(['gap closed', none, none, none, ...[transfer, lora].map(({gap_closed: part}) => number(percent(part, 1)))]);
    rows.push(['KL to the teacher', none, nats(control.kl), nats(equal.kl), ...[transfer, lora].map((of) => nats(column(of, 'student').kl))]);
  }
  const score = ({value, stderr} = {}) => number(isNumber(value) ? shown(value) + (isNumber(stderr) ? ` \u00b1 ${shown(stderr)}` : '') : NONE);
  for (const [name, {subjects: own = {}, samples, shots}] of Object.entries(tasks)) {
    rows.push([{text: `${name}, ${samples} questions, ${shots} shots`, className: 'group clip', title: name}, '', '', '', '', '']);
    const metrics = new Set(Object.values(own).flatMap((subject) => Object.keys(subject.metrics || {})));
    for (const metric of metrics)
      rows.push([metric, ...TASK_SUBJECTS.map((subject) => score(((own[subject] || {}).metrics || {})[metric]))]);
  }
  fillTable(byId('quality').tBodies[0], rows);
}

function drawVariants(run) {
  const rows = run.status.variants || [];
  byId('variants-section').hidden = rows.length === 0;
  const median = (spread, scale = 1) => number(spread ? shown(scale * spread.median) : NONE);
  fillTable(byId('variants').tBodies[0], rows.map((row) => [
    {text: row.variant, className: 'clip', title: row.variant}, number(String(row.seeds)), median(row.relative_mse),
    median(row.kl), number(row.kl ? shown(row.kl.least) : NONE), number(row.kl ? shown(row.kl.most) : NONE),
    ...[row.window_kl, row.control_kl].map((kl) => number(isNumber(kl) ? shown(kl) : NONE)),
    number(row.kept_untrained > 0 ? `${row.kept_untrained} of ${row.layers}` : ''),
    Object.entries(row.texts || {}).filter(([, text]) => text.gap_closed)
        .map(([name, text]) => `${name} ${percent(text.gap_closed.median, 1)}`).join(', ') || NONE,
    number(row.state_bytes > 0 ? bytes(row.state_bytes) : NONE), median(row.seconds_per_step, 1000), row.on_front ? 'yes' : '',
  ]));
}

const TASK_WORDS = {done: '', running: 'learning'};  // other states are shown as they are

// What is known of each layer now: of the finished task, else of the last row of its history.
function layersOf(run) {
  const columns = columnsOf(run, 'layer');
  const layers = Array.from({length: run.numLayers}, (_, layer) => {
    const series = run.series.get('layer/' + layer);
    return {
      ...Object.fromEntries(columns.map(({name}) => [name, lastOf(series, name)])),
      layer,
      block: -1,
      attempts: undefined,
      mark: '',
      isKept: run.kept.has(layer),
      step: series && series.rows.length > 0 ? series.rows[series.rows.length - 1][0] : undefined,
    };
  });
  for (const task of run.status.tasks || []) {
    if (task.stage !== 'transfer') continue;
    for (const row of layers.slice(task.first_layer, task.first_layer + task.num_layers))
      Object.assign(row, {block: task.block, attempts: task.attempts, mark: TASK_WORDS[task.state] ?? task.state});
    for (const result of (task.result && task.result.layers) || []) {
      const row = layers[result.layer];
      if (!row) continue;
      row.step = result.step ?? row.step;
      for (const {name} of columns) row[name] = result[name] ?? row[name];
      if (result.stopped_early) row.mark = 'stopped early';
      if (result.kept_untrained === true) row.mark = 'kept untrained';
      if (result.kept_untrained === false) row.mark = 'behind its control';
    }
  }
  for (const row of layers) {
    row.ratio = ratioOf((name) => row[name]);
    if (row.isKept) row.mark = 'softmax kept';
  }
  return layers;
}

const LEAST_IMPORTANCE = 4;  // of a column that the table of layers has room for

// Of the table of layers: title, field of a layer, how it is shown.
function layerColumns(run) {
  const measured =
      columnsOf(run, 'layer')
          .filter(({importance}) => importance >= LEAST_IMPORTANCE)
          .sort((a, b) => b.importance - a.importance)
          .map(({name,
                 label,
                 unit}) => [label, name, unit === 'share' ? (share) => percent(share, 1) : shown]);
  const control = measured.findIndex(([, name]) => name === 'control_mse');
  if (control >= 0) measured.splice(control + 1, 0, ['MSE / control', 'ratio', shown]);
  return [
    ['layer', 'layer', String],
    ['block', 'block', (block) => (block >= 0 ? String(block) : NONE)],
    ['step', 'step', String],
    ...measured,
    ['attempts', 'attempts', String],
  ];
}

// The head of the table of layers, whose titles sort it.
function makeLayerHead(run, redraw) {
  const head = byId('layers').tHead.rows[0];
  head.replaceChildren();
  for (const [title, field] of layerColumns(run)) {
    const cell = make('th', 'number'), button = make('button', '', title);
    cell.scope = 'col';
    cell.dataset.key = field;
    button.type = 'button';
    button.onclick = () => {
      run.order = {field, isDown: run.order.field === field ? !run.order.isDown : field !== 'layer'};
      redraw();
    };
    cell.append(button);
    head.append(cell);
  }
  const state = make('th', '', 'state');
  state.scope = 'col';
  head.append(state);
}

function drawLayers(run, choose) {
  const {field, isDown} = run.order, head = byId('layers').tHead.rows[0],
                columns = layerColumns(run);
  const ratio = columns.findIndex(([, name]) => name === 'ratio');
  if (head.cells.length !== columns.length + 1) makeLayerHead(run, () => drawLayers(run, choose));
  columns.forEach(([title, name], i) => {
    const arrow = name !== field ? '' : isDown ? ' \u2193' : ' \u2191';
    head.cells[i].setAttribute('aria-sort', name !== field ? 'none' : isDown ? 'descending' : 'ascending');
    setText(head.cells[i].firstChild, title + arrow);
  });
  const valueOf = (row) => (isNumber(row[field]) ? row[field] : isDown ? -Infinity : Infinity);
  const compare = (a, b) => (valueOf(a) === valueOf(b) ? a.layer - b.layer : (valueOf(a) < valueOf(b)) === isDown ? 1 : -1);
  fillTable(byId('layers').tBodies[0], [...run.layers].sort(compare).map((row) => {
    const cells =
        columns.map(([, name, form]) => number(isNumber(row[name]) ? form(row[name]) : NONE));
    Object.assign(cells[0], {press: () => choose(row.layer), title: 'show its curves'});
    if (row.ratio > 1) cells[ratio].className += ' bad';
    const isBad = ['quarantined', 'behind its control'].includes(row.mark);
    cells.push({text: row.mark, className: isBad ? 'bad' : 'quiet'});
    cells.rowClass = row.layer === run.layer ? 'chosen' : '';
    return cells;
  }));
}

function drawAttempts(run) {
  const newest = [...run.attempts.values()].sort((a, b) => b.token - a.token), now = run.now();
  setText(byId('attempts-note'), newestOf(newest.length, 'No attempts yet.'));
  const clipped = (text) => ({text: text || '', className: 'clip', title: text});
  fillTable(byId('attempts').tBodies[0], newest.slice(0, MAX_LINES).map((attempt) => {
    const {seconds, tokens} = attempt, isBad = ['failed', 'revoked'].includes(attempt.outcome);
    return [
      attempt.task, clipped(attempt.worker), clipped(attempt.host),
      clock(attempt.started, now), number(duration((attempt.ended || now) - attempt.started)),
      {text: attempt.outcome || 'running', className: isBad ? 'bad' : ''},
      number(attempt.steps ? String(attempt.steps) : NONE), number(tokens && seconds ? shown(tokens / seconds) : NONE),
      number(seconds ? percent(attempt.seconds_waited_on_data / seconds, 1) : NONE),
      number(bytes(attempt.host_bytes)), number(bytes(attempt.device_bytes)), {text: attempt.reason || '', className: 'wrap'},
    ];
  }));
}

// A key of the lanes' colours and shapes.
function drawLanesLegend(lanes) {
  const legend = byId('lanes-legend'), outcomes = {failed: 'failed', revoked: 'revoked', released: 'given back'};
  const add = (mark, text) => {
    const key = make('span', 'key');
    key.append(mark, text);
    legend.append(key);
  };
  if (!legend.firstChild) {
    for (const [stage, color] of Object.entries(STAGE_COLORS)) {
      const swatch = make('i', 'swatch');
      swatch.style.background = color;
      add(swatch, STAGE_WORDS[stage]);
    }
    for (const text of Object.values(outcomes)) add(make('canvas'), text);
    add(make('i', 'now-line'), 'now');
  }
  legend.querySelectorAll('canvas').forEach((canvas, i) => lanes.key(canvas, Object.keys(outcomes)[i]));
}

function drawEvents(run) {
  const {events, status} = run, now = run.now(), outcomes = [...run.attempts.values()].map(({outcome}) => outcome);
  const ended = (outcome) => outcomes.filter((other) => other === outcome).length;
  const lost = (status.tasks || []).reduce((sum, task) => sum + (task.lost_steps || 0), 0);
  setText(byId('faults'), `${count(outcomes.length, 'attempt')}: ${ended('failed')} failed, ${ended('revoked')} revoked; `
    + `${count(lost, 'step')} computed again; coordinator restarted ${count(Math.max(0, (status.term || 0) - 1), 'time')}`);
  setText(byId('events-note'), newestOf(events.length, 'No events yet.'));
  fillTable(byId('events').tBodies[0], events.slice(-MAX_LINES).reverse().map(({time, subject, type, text}) => [
    {text: clock(time, now), className: 'quiet'}, {text: subject || 'run', className: 'clip', title: subject},
    {text: text || type || '', className: ['failed', 'revoked', 'quarantined', 'expired'].includes(type) ? 'wrap bad' : 'wrap'},
  ]));
}

// `provenance` of the snapshot: {name: value}, where there is one.
function drawProvenance(run) {
  const {status, snapshot} = run, before = status.term ? `none now, ${count(status.term, 'term')}` : NONE;
  const word = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  fillList(byId('provenance'), [
    {name: 'hedgerow', value: snapshot.version || NONE},
    {name: 'run directory', value: status.run || NONE},
    {name: 'coordinator', value: status.host ? `${status.host}, term ${status.term}` : before},
    {name: 'state of', value: status.updated_at || NONE},
    ...Object.entries(snapshot.provenance || {}).map(([name, value]) => ({name, value: word(value)})),
  ]);
  setText(byId('recipe'), snapshot.recipe || '');
}

function drawAttentionMaps(run) {
  const maps = [...run.attention.values()], {shownMap} = run, ascending = (a, b) => a - b;
  for (const id of ['choice', 'maps', 'legend']) byId('attention-' + id).hidden = maps.length === 0;
  if (maps.length === 0) {
    setText(byId('attention-note'), 'None yet: the transfer writes those of a few layers.');
    return;
  }
  const layers = [...new Set(maps.map(({layer}) => layer))].sort(ascending);
  if (!layers.includes(shownMap.layer)) [shownMap.layer] = layers;
  const heads = maps.filter(({layer}) => layer === shownMap.layer).map(({head}) => head).sort(ascending);
  if (!heads.includes(shownMap.head)) [shownMap.head] = heads;
  const optionsFor = (values) => values.map((value) => [String(value), String(value)]);
  fillSelect(byId('attention-layer'), optionsFor(layers), shownMap.layer);
  fillSelect(byId('attention-head'), optionsFor(heads), shownMap.head);
  const map = run.attention.get(`${shownMap.layer}/${shownMap.head}`);
  setText(byId('attention-note'), `First validation sequence, step ${map.step}; queries down, keys across, log scale.`);
  for (const side of ['softmax', 'student']) {
    const canvas = byId('attention-' + side);
    drawAttention(canvas, map, map[side]);
    canvas.setAttribute('aria-label', `attention weights of layer ${map.layer}, head ${map.head}, ${side}`);
  }
  drawScale(byId('attention-scale'), 1e-4, 1, true, (value) => (value <= 1e-4 ? '\u2264 0.0001' : String(value)));
}
