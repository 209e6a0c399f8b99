// The curves of a layer and of LoRA, by Chart.js. A chart is made when it first has something to show,
// and changed in place from then on.
'use strict';

const charts = new Map();  // id -> Chart
const COLORS = ['one', 'two', 'three', 'four'];  // of a chart's lines, by the theme

// Of the line of a column, the table's or by its place in the chart.
function colorOf({color}, place) {
  return COLORS[color > 0 ? color - 1 : place % COLORS.length];
}

// [{x: step, y}] of one column; y may be null.
function pointsOf(series, name) {
  const at = series ? series.columns.indexOf(name) : -1;
  return at < 0 ? [] : series.rows.map((row) => ({x: row[0], y: row[2 + at]}));
}

function axisOf(isLog, form) {
  const logTick = (value, i, all) => {  // 1, 2 and 5, or the powers of ten alone where there are many
    const mantissa = Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
    return (all.length > 28 ? mantissa === 1 : [1, 2, 5].includes(mantissa)) ? form(value) : null;
  };
  return {
    type: isLog ? 'logarithmic' : 'linear',
    grid: {color: themed('line'), drawBorder: false, tickLength: 4},
    ticks: {
      color: themed('muted'), font: {size: 11}, maxTicksLimit: 6, maxRotation: 0, autoSkip: !isLog,
      callback: isLog ? logTick : form,
    },
  };
}

function optionsOf(isLog, limits) {
  return {
    animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
    interaction: {mode: 'index', axis: 'x', intersect: false},
    layout: {padding: {right: 4}},
    scales: {x: axisOf(false, String), y: {...axisOf(isLog, shortly), ...limits}},
    plugins: {
      legend: {
        align: 'start',
        labels: {color: themed('muted'), boxWidth: 14, boxHeight: 1, padding: 8, font: {size: 11}},
      },
      tooltip: {
        animation: false,
        callbacks: {
          title: (items) => 'step ' + items[0].parsed.x,
          label: (item) => `${item.dataset.label} ${shown(item.parsed.y)}`,
        },
      },
    },
  };
}

function makeFigure(parent, id, title) {
  const figure = make('figure'), place = make('div', 'chart'), canvas = make('canvas');
  figure.id = id + '-figure';
  canvas.id = id;
  canvas.setAttribute('role', 'img');
  place.append(canvas);
  figure.append(make('figcaption', '', title), place);
  parent.append(figure);
}

// A chart in `parent`. lines: [{label, points, color (a theme's name), isDashed}]; one without points is
// left out, a chart without lines hidden. `top`: the axis goes from 0 to there. Returns whether it
// shows anything.
function drawChart(parent, id, title, lines, {isLog = false, top} = {}) {
  const isUsable = ({y}) => isNumber(y) && (!isLog || y > 0);
  const usable = lines.map((line) => ({...line, points: line.points.filter(isUsable)}))
    .filter(({points}) => points.length > 0);
  if (byId(id)) byId(id + '-figure').hidden = usable.length === 0;
  if (usable.length === 0) return false;
  if (!byId(id)) makeFigure(parent, id, title);
  const words = usable.map(({label, points}) => {
    const first = points[0], last = points[points.length - 1];
    return `${label} ${shown(first.y)} at step ${first.x}, ${shown(last.y)} at step ${last.x}`;
  });
  byId(id).setAttribute('aria-label', title + ': ' + words.join('; '));

  const level = usable[0].points[0].y;
  const isFlat = !isLog && level > 0 && usable.every(({points}) => points.every(({y}) => y === level));
  const options = optionsOf(isLog, top ? {min: 0, max: top} : isFlat ? {min: 0, max: 2 * level} : {});
  const datasets = usable.map(({label, points, color, isDashed}) => ({
    label, data: points, borderColor: themed(color), backgroundColor: themed(color), borderWidth: 1.75,
    borderDash: isDashed ? [5, 4] : [], pointHoverRadius: 4,
    pointRadius: points.length <= 3 ? 3 : points.length > 40 || isDashed ? 0 : 2,
  }));
  const chart = charts.get(id);
  if (chart) {
    chart.options = options;
    chart.data = {datasets};
    chart.update('none');
  } else {
    charts.set(id, new Chart(byId(id), {type: 'line', data: {datasets}, options}));
  }
  return true;
}

function layerNote(row, hasRows) {
  if (!row) return 'No layers yet.';
  if (row.isKept) return 'Keeps softmax attention: nothing to learn.';
  if (!hasRows) return `Nothing measured yet (${row.mark || 'waiting'}).`;
  const behind =
      row.ratio < 1 ? `${shown(1 / row.ratio)} times below the control` : 'not below the control';
  const block = row.block >= 0 ? `block ${row.block}, ` : '';
  return `${block}step ${row.step}: relative MSE ${shown(row.relative_mse)}, ${behind}` +
      (row.mark ? `; ${row.mark}` : '');
}

function drawLayer(run) {
  const {layer} = run, series = run.series.get('layer/' + layer), place = byId('layer-charts');
  const hasRows = series !== undefined && series.rows.length > 0;
  setText(byId('layer-title'), layer >= 0 ? `Layer ${layer}` : 'Layer');
  fillSelect(byId('layer'), Array.from({length: run.numLayers}, (_, i) => [String(i), String(i)]), layer);
  setText(byId('layer-note'), layerNote(run.layers[layer], hasRows));
  place.hidden = !hasRows;
  if (!hasRows) return;
  const drawn = columnsOf(run, 'layer').filter(({chart}) => chart);
  for (const title of new Set(drawn.map(({chart}) => chart))) {
    const columns = drawn.filter(({chart}) => chart === title), [{name, log, unit}] = columns;
    const lines = columns.map((column, i) => ({
                                label: column.line,
                                points: pointsOf(series, column.name),
                                color: colorOf(column, i),
                                isDashed: column.dashed
                              }));
    drawChart(place, 'chart-layer-' + name, title, lines, {
      isLog: log,
      top: unit === 'share' ? 1 : undefined
    });
  }
}

function drawLora(run) {
  const trained = run.series.get('finetune'), checked = run.series.get('finetune/validation'), place = byId('lora-charts');
  const isPlanned = (run.status.stages || []).some(({stage}) => stage === 'finetune');
  const hasRows = [trained, checked].some((series) => series && series.rows.length > 0);
  setText(byId('lora-note'), hasRows ? '' : isPlanned ? 'Has not begun.' : 'This recipe ends after the transfer.');
  place.hidden = !hasRows;
  if (!hasRows) return;
  // a column's line, or the lines of all that begin with its name
  const linesOf = (series, {name, line, dashed}, color) =>
      (name.endsWith('/') ?
           series.columns.filter((each) => each.startsWith(name))
               .map((each, i) => ({
                      label: each.slice(name.length),
                      points: pointsOf(series, each),
                      color: COLORS[i % COLORS.length],
                      isDashed: i >= COLORS.length
                    })) :
           [{label: line, points: pointsOf(series, name), color, isDashed: dashed}]);
  const drawn = [[trained, 'finetune'], [checked, 'finetune/validation']].flatMap(
      ([series, kind]) => columnsOf(run, kind)
                              .filter(({chart}) => series && chart)
                              .map((column) => ({...column, series})));
  drawn.sort((a, b) => b.importance - a.importance);
  for (const title of new Set(drawn.map(({chart}) => chart))) {
    const columns = drawn.filter(({chart}) => chart === title), [{name, log}] = columns;
    // beside KL, cross-entropy says nothing new
    const isHidden = name === 'cross_entropy' && checked.columns.includes('kl');
    const lines =
        columns.flatMap((column, i) => linesOf(column.series, column, colorOf(column, i)));
    drawChart(place, 'chart-' + name.replace('/', ''), title, isHidden ? [] : lines, {isLog: log});
  }
}
