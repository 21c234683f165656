// SPDX-License-Identifier: Apache-2.0
// Assembly of the page: frame, style, data, script. The parts are the files of page/, which the
// build embeds as string literals (cmake/HocketEmbed.cmake).
#include "diagnose/report.h"

#include <fmt/format.h>

#include <string_view>

#include "base/file.h"
#include "diagnose/report_json.h"

namespace hocket::diagnose {
namespace {

constexpr std::string_view kFrame =
#include "diagnose/page/page.html.inc"
    ;
constexpr std::string_view kStyle =
#include "diagnose/page/style.css.inc"
    ;
constexpr std::string_view kScripts[] = {
#include "diagnose/page/core.js.inc"
    ,
#include "diagnose/page/lines.js.inc"
    ,
#include "diagnose/page/time.js.inc"
    ,
#include "diagnose/page/timeline.js.inc"
    ,
#include "diagnose/page/memory.js.inc"
    ,
#include "diagnose/page/experts.js.inc"
    ,
#include "diagnose/page/ranks.js.inc"
    ,
#include "diagnose/page/page.js.inc"
};

constexpr size_t kMaxBytes = 2'000'000;

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// One pass over the frame, so that marks inside the data have no effect.
std::string assemble(const std::string& title, const std::string& data) {
  std::string script;
  for (const std::string_view part : kScripts) {
    script += '\n';
    script += part;
  }
  std::string out;
  for (size_t at = 0; at < kFrame.size();) {
    size_t mark = kFrame.find('@', at);
    const size_t close = mark == kFrame.npos ? kFrame.npos : kFrame.find('@', mark + 1);
    if (close == kFrame.npos) {
      mark = kFrame.size();
    }
    out += kFrame.substr(at, mark - at);
    if (mark == kFrame.size()) break;
    const std::string_view name = kFrame.substr(mark + 1, close - mark - 1);
    out += name == "TITLE"   ? std::string_view(title)
           : name == "STYLE" ? kStyle
           : name == "DATA"  ? std::string_view(data)
                             : std::string_view(script);
    at = close + 1;
  }
  return out;
}

}  // namespace

std::string report_json(const ReportData& report) { return report_json(report, ReportLimits()); }

std::string report_html(const ReportData& report) {
  const std::string title = escape_html(report.title.empty() ? "Hocket report" : report.title);
  ReportLimits limits;
  for (;;) {
    std::string page = assemble(title, report_json(report, limits));
    if (page.size() <= kMaxBytes || limits.events < 500) return page;
    limits.halve();
  }
}

void write_report_html(const ReportData& report, const std::string& path) {
  write_file_atomic(path, report_html(report));
}

}  // namespace hocket::diagnose
