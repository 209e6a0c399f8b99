#include "coordinator/web/report.hpp"

#include <string_view>

#include "coordinator/web/assets.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

std::string_view asset(std::string_view path) {
  for (const Asset& asset : web_assets())
    if (asset.path == path) return asset.body;
  throw storage::Error(storage::ErrorKind::kInternal,
                       "the page names " + std::string(path) + ", which is not embedded");
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::string report_html(const Snapshot& snapshot) {
  std::string html(asset("/index.html"));
  // Scripts run once all that stands before them is there, so they go to the end.
  std::string scripts;
  constexpr std::string_view kScript = "<script src=\"";
  for (std::size_t at = html.find(kScript); at != std::string::npos; at = html.find(kScript)) {
    const std::size_t begin = at + kScript.size();
    const std::string path = html.substr(begin, html.find('"', begin) - begin);
    constexpr std::string_view kEnd = "</script>";
    html.erase(at, html.find(kEnd, at) + kEnd.size() - at);
    std::string script(asset(path));
    replace_all(script, "</script", "<\\/script");
    scripts += "<script>\n" + script + "\n</script>\n";
  }
  constexpr std::string_view kStyle = "<link rel=\"stylesheet\" href=\"/page.css\">";
  const std::size_t style = html.find(kStyle);
  if (style == std::string::npos)
    throw storage::Error(storage::ErrorKind::kInternal, "the page does not name its style");
  html.replace(style, kStyle.size(), "<style>\n" + std::string(asset("/page.css")) + "</style>");
  std::string data = snapshot_json(snapshot);
  replace_all(data, "<", "\\u003c");
  const std::size_t end = html.rfind("</body>");
  html.insert(
      end, "<script type=\"application/json\" id=\"snapshot\">" + data + "</script>\n" + scripts);
  return html;
}

}  // namespace hedgerow::coordinator
