#include "coordinator/cli/bench/bench_plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

namespace hedgerow::coordinator::cli {
namespace {

constexpr int kWidth = 1040, kTop = 64, kBottom = 24;
constexpr int kLeft = 84, kPlotWidth = 500, kPlotHeight = 260, kPanelGap = 84, kLegendRow = 20;
constexpr std::size_t kColours = 7, kShapes = 4, kShapeOfSoftmax = kShapes;

// Colours that stay apart for the colour-blind (Okabe and Ito), darker on white, lighter on black.
constexpr const char* kStyle = R"(<style>
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328; }
.title { font-size: 18px; font-weight: 600; }
.panel { font-size: 15px; font-weight: 600; }
.paper { fill: #ffffff; }
.grid { stroke: #d8dce1; stroke-width: 1; }
.frame { stroke: #59636e; stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; }
.softmax { stroke: #1f2328; stroke-width: 2; fill: none; stroke-dasharray: 7 5; }
.met { fill: #1f2328; }
.cross { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 2 3; }
.s0 { stroke: #0072b2; } .f0 { fill: #0072b2; } .s1 { stroke: #b84a00; } .f1 { fill: #b84a00; }
.s2 { stroke: #007a5a; } .f2 { fill: #007a5a; } .s3 { stroke: #a3447f; } .f3 { fill: #a3447f; }
.s4 { stroke: #8a6d00; } .f4 { fill: #8a6d00; } .s5 { stroke: #2b7bba; } .f5 { fill: #2b7bba; }
.s6 { stroke: #6e4fbf; } .f6 { fill: #6e4fbf; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ec; }
.paper { fill: #14171a; }
.grid { stroke: #32383f; }
.frame { stroke: #9aa4af; }
.softmax { stroke: #e6e9ec; }
.met { fill: #e6e9ec; }
.cross { stroke: #e6e9ec; }
.s0 { stroke: #56b4e9; } .f0 { fill: #56b4e9; } .s1 { stroke: #ff9a52; } .f1 { fill: #ff9a52; }
.s2 { stroke: #2fd0a0; } .f2 { fill: #2fd0a0; } .s3 { stroke: #e59ac8; } .f3 { fill: #e59ac8; }
.s4 { stroke: #f0d84a; } .f4 { fill: #f0d84a; } .s5 { stroke: #9cc9f5; } .f5 { fill: #9cc9f5; }
.s6 { stroke: #b9a3f5; } .f6 { fill: #b9a3f5; }
}
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }
  return out;
}

std::string at(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

// Ticks are round: whole numbers have no exponent.
std::string tick_text(double value) {
  return value >= 1 ? std::to_string(std::llround(value)) : number_text(value);
}

std::string element_text(double x,
                         double y,
                         const std::string& words,
                         const std::string& more = "") {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\"" + more + ">" + escaped(words) +
         "</text>\n";
}

std::string segment(double x1, double y1, double x2, double y2, const std::string& css) {
  return "<line class=\"" + css + "\" x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) +
         "\" y2=\"" + at(y2) + "\"/>\n";
}

// A value to a position, by its logarithm.
struct Scale {
  double least, most, from, to;
  double operator()(double value) const {
    const double whole = std::log(most / least);
    return whole <= 0 ? (from + to) / 2 : from + (to - from) * std::log(value / least) / whole;
  }
};

struct Point {
  double length, us;
};

std::vector<Point> points_of(const KernelLine& line) {
  std::vector<Point> points;
  for (const KernelRow& row : line.rows) {
    if (std::isfinite(row.us_per_token) && row.us_per_token > 0)
      points.push_back({static_cast<double>(row.length), row.us_per_token});
  }
  return points;
}

// Where the drawn line stands at a length between two of its points.
double time_at(const std::vector<Point>& points, double length) {
  const auto right = std::find_if(
      points.begin(), points.end(), [&](const Point& point) { return point.length >= length; });
  if (right == points.begin()) return points.front().us;
  if (right == points.end()) return points.back().us;
  const Point& left = *(right - 1);
  const double part = std::log(length / left.length) / std::log(right->length / left.length);
  return left.us * std::pow(right->us / left.us, part);
}

// One panel's softmax: where several variants met it at a length, the median.
std::vector<Point> softmax_of(const std::vector<KernelLine>& lines) {
  std::map<double, std::vector<double>> times;
  for (const KernelLine& line : lines) {
    for (const KernelRow& row : line.rows) {
      if (std::isfinite(row.softmax_us_per_token) && row.softmax_us_per_token > 0)
        times[static_cast<double>(row.length)].push_back(row.softmax_us_per_token);
    }
  }
  std::vector<Point> points;
  for (auto& [length, all] : times) {
    std::sort(all.begin(), all.end());
    points.push_back({length, all[all.size() / 2]});
  }
  return points;
}

std::string polyline(const std::vector<Point>& points,
                     const Scale& x,
                     const Scale& y,
                     const std::string& css) {
  if (points.size() < 2) return "";  // its mark is all there is to see
  std::string out = "<polyline class=\"" + css + "\" points=\"";
  for (const Point& point : points) {
    out += (out.back() == '"' ? "" : " ") + at(x(point.length)) + "," + at(y(point.us));
  }
  return out + "\"/>\n";
}

// Circle, square, triangle, diamond; of softmax a triangle on its tip.
std::string shape(
    std::size_t kind, const std::string& name, double x, double y, const std::string& text) {
  constexpr double kSize = 4.5;
  const std::string css = "class=\"" + name + "\"";
  const std::string body = text.empty() ? "/>\n" : "><title>" + escaped(text) + "</title>";
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string points;
    for (const auto& [dx, dy] : corners)
      points += (points.empty() ? "" : " ") + at(x + dx * kSize) + "," + at(y + dy * kSize);
    return "<polygon " + css + " points=\"" + points + "\"" + body +
           (text.empty() ? "" : "</polygon>\n");
  };
  switch (kind) {
    case 1:
      return polygon({{-1, -1}, {1, -1}, {1, 1}, {-1, 1}});
    case 2:
      return polygon({{0, -1.2}, {1.2, 1}, {-1.2, 1}});
    case 3:
      return polygon({{0, -1.4}, {1.4, 0}, {0, 1.4}, {-1.4, 0}});
    case kShapeOfSoftmax:
      return polygon({{0, 1.2}, {1.2, -1}, {-1.2, -1}});
    default:
      return "<circle " + css + " cx=\"" + at(x) + "\" cy=\"" + at(y) + "\" r=\"" + at(kSize) +
             "\"" + body + (text.empty() ? "" : "</circle>\n");
  }
}

std::string mark(std::size_t number, double x, double y, const std::string& text) {
  return shape(number % kShapes, "f" + std::to_string(number % kColours), x, y, text);
}

std::string softmax_mark(double x, double y, const std::string& text) {
  return shape(kShapeOfSoftmax, "met", x, y, text);
}

std::string point_text(const std::string& name, const Point& point) {
  return name + ", T = " + std::to_string(std::llround(point.length)) + ": " +
         number_text(point.us) + " us a token";
}

// One direction and head count.
class Panel {
 public:
  Panel(const std::vector<KernelLine>& lines, double top)
      : lines_(lines), softmax_(softmax_of(lines)), top_(top) {
    std::vector<double> times;
    for (const KernelLine& line : lines) {
      for (const Point& point : points_of(line)) {
        times.push_back(point.us);
        lengths_.insert(point.length);
      }
    }
    for (const Point& point : softmax_) times.push_back(point.us);
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    ticks_ = log_ticks(times.empty() ? 1 : *least, times.empty() ? 10 : *most);
    if (lengths_.empty()) lengths_.insert(1);
    x_ = {*lengths_.begin(), *lengths_.rbegin(), kLeft, kLeft + kPlotWidth};
    y_ = {ticks_.front(), ticks_.back(), top_ + kPlotHeight, top_};
  }

  [[nodiscard]] std::string draw() const {
    const KernelRow& row = lines_.front().rows.front();
    std::string out = "<g>\n" + element_text(kLeft,
                                             top_ - 12,
                                             row.direction + ", " + row.heads + " heads",
                                             " class=\"panel\"");
    out += axes();
    out += polyline(softmax_, x_, y_, "softmax");
    for (const Point& point : softmax_)
      out += softmax_mark(x_(point.length), y_(point.us), point_text("softmax", point));
    for (std::size_t i = 0; i < lines_.size(); ++i) out += line(i);
    return out + legend() + "</g>\n";
  }

  [[nodiscard]] static double height(std::size_t num_lines) {
    return std::max<double>(kPlotHeight, static_cast<double>(num_lines + 2) * kLegendRow);
  }

 private:
  [[nodiscard]] std::string axes() const {
    std::string out = "<rect class=\"frame\" x=\"" + at(kLeft) + "\" y=\"" + at(top_) +
                      "\" width=\"" + at(kPlotWidth) + "\" height=\"" + at(kPlotHeight) + "\"/>\n";
    for (const double tick : ticks_) {
      out += segment(kLeft, y_(tick), kLeft + kPlotWidth, y_(tick), "grid");
      out += element_text(
          kLeft - 8, y_(tick) + 4, tick_text(tick), " class=\"tick\" text-anchor=\"end\"");
    }
    double last = -1e9;
    for (const double length : lengths_) {
      out += segment(x_(length), top_, x_(length), top_ + kPlotHeight, "grid");
      if (x_(length) - last < 44) continue;  // its label would run into the one before
      last = x_(length);
      out += element_text(last,
                          top_ + kPlotHeight + 18,
                          std::to_string(std::llround(length)),
                          " class=\"tick\" text-anchor=\"middle\"");
    }
    const double middle = top_ + kPlotHeight / 2.0;
    out += element_text(
        kLeft + kPlotWidth / 2.0, top_ + kPlotHeight + 38, "T, tokens", " text-anchor=\"middle\"");
    return out +
           element_text(22,
                        middle,
                        "microseconds a token",
                        " text-anchor=\"middle\" transform=\"rotate(-90 22 " + at(middle) + ")\"");
  }

  [[nodiscard]] std::string line(std::size_t number) const {
    const std::vector<Point> points = points_of(lines_[number]);
    std::string out = polyline(points, x_, y_, "line s" + std::to_string(number % kColours));
    for (const Point& point : points) {
      out += mark(number, x_(point.length), y_(point.us), point_text(lines_[number].name, point));
    }
    const std::optional<double> crossing = crossover_length(lines_[number]);
    if (!crossing) return out;
    const double x = x_(*crossing), bottom = top_ + kPlotHeight;
    // Labels of neighbours lie at different heights.
    const double label = bottom - 10 - static_cast<double>(number % 4) * 16;
    return out + segment(x, y_(time_at(points, *crossing)), x, bottom, "cross") +
           mark(number, x, bottom, "") +
           element_text(
               x + 6, label, std::to_string(std::llround(*crossing)), " class=\"crossing\"");
  }

  [[nodiscard]] std::string legend() const {
    const double x = kLeft + kPlotWidth + 20;
    double y = top_ + 12 - kLegendRow;
    std::string out;
    if (!softmax_.empty()) {
      y += kLegendRow;
      out += segment(x, y - 4, x + 28, y - 4, "softmax") + softmax_mark(x + 14, y - 4, "") +
             element_text(x + 36, y, "softmax, the fastest backend");
    }
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      y += kLegendRow;
      out += segment(x, y - 4, x + 28, y - 4, "line s" + std::to_string(i % kColours)) +
             mark(i, x + 14, y - 4, "") + element_text(x + 36, y, lines_[i].name);
    }
    const bool has_crossing = std::any_of(lines_.begin(), lines_.end(), [](const KernelLine& line) {
      return crossover_length(line).has_value();
    });
    if (!has_crossing) return out;
    y += kLegendRow;
    return out + segment(x, y - 4, x + 28, y - 4, "cross") +
           element_text(x + 36, y, "crossover: faster from this T on");
  }

  const std::vector<KernelLine>& lines_;
  std::vector<Point> softmax_;
  double top_;
  std::set<double> lengths_;
  std::vector<double> ticks_;
  Scale x_{}, y_{};
};

// Lines of one panel, in their order.
std::vector<std::vector<KernelLine>> panels_of(const std::vector<KernelLine>& lines) {
  std::vector<std::vector<KernelLine>> panels;
  for (const KernelLine& line : lines) {
    const KernelRow& row = line.rows.front();
    const auto found = std::find_if(panels.begin(), panels.end(), [&](const auto& panel) {
      const KernelRow& other = panel.front().rows.front();
      return other.direction == row.direction && other.heads == row.heads;
    });
    if (found == panels.end()) {
      panels.push_back({line});
    } else {
      found->push_back(line);
    }
  }
  return panels;
}

}  // namespace

std::vector<double> log_ticks(double least, double most) {
  std::vector<double> all;
  const double first = std::floor(std::log10(least)), last = std::ceil(std::log10(most));
  for (double decade = first; decade <= last; ++decade) {
    for (const double step : {1.0, 2.0, 5.0}) all.push_back(step * std::pow(10.0, decade));
  }
  // A hair: ticks are sums of roundings.
  constexpr double kHair = 1e-9;
  auto begin = all.begin(), end = all.end();
  while (begin + 1 != end && *(begin + 1) <= least * (1 + kHair)) ++begin;
  while (end - 1 != begin && end - 2 != begin && *(end - 2) >= most * (1 - kHair)) --end;
  return {begin, end};
}

std::string kernel_plot(const std::vector<KernelLine>& lines, const std::string& subtitle) {
  const auto panels = panels_of(lines);
  std::string body, description = subtitle + ".";
  double top = kTop + 40;
  for (const std::vector<KernelLine>& panel : panels) {
    body += Panel(panel, top).draw();
    top += Panel::height(panel.size()) + kPanelGap;
  }
  for (const KernelLine& line : lines) description += " " + crossover_text(line) + ".";
  if (lines.empty()) {
    description += " Nothing was measured.";
    body = element_text(kLeft, top, "Nothing was measured.");
    top += 40;
  }
  const std::string height = at(top - (lines.empty() ? 0 : kPanelGap - 56) + kBottom);
  const std::string title = "Linear attention against softmax: time a token";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + std::to_string(kWidth) + " " +
         height + "\" width=\"" + std::to_string(kWidth) + "\" height=\"" + height +
         "\" role=\"img\" aria-labelledby=\"title description\">\n<title id=\"title\">" + title +
         "</title>\n<desc id=\"description\">" + escaped(description) + "</desc>\n" + kStyle +
         "<rect class=\"paper\" width=\"" + std::to_string(kWidth) + "\" height=\"" + height +
         "\"/>\n" + element_text(kLeft, 32, title, " class=\"title\"") +
         element_text(kLeft, 54, subtitle) + body + "</svg>\n";
}

}  // namespace hedgerow::coordinator::cli
