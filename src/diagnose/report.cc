// SPDX-License-Identifier: Apache-2.0
// Page of a training or a simulated step: its scripts, and its size.
#include "diagnose/report.h"

#include <string_view>

#include "base/file.h"
#include "diagnose/html_page.h"
#include "diagnose/report_json.h"

namespace hocket::diagnose {
namespace {

constexpr std::string_view kTime =
#include "diagnose/page/time.js.inc"
    ;
constexpr std::string_view kTimeline =
#include "diagnose/page/timeline.js.inc"
    ;
constexpr std::string_view kMemory =
#include "diagnose/page/memory.js.inc"
    ;
constexpr std::string_view kExperts =
#include "diagnose/page/experts.js.inc"
    ;
constexpr std::string_view kRanks =
#include "diagnose/page/ranks.js.inc"
    ;
constexpr std::string_view kPage =
#include "diagnose/page/page.js.inc"
    ;

constexpr size_t kMaxBytes = 2'000'000;

}  // namespace

std::string report_json(const ReportData& report) { return report_json(report, ReportLimits()); }

std::string report_html(const ReportData& report) {
  HtmlPage page;
  page.title = report.title.empty() ? "Hocket report" : report.title;
  page.scripts = {kTime, kTimeline, kMemory, kExperts, kRanks, kPage};
  ReportLimits limits;
  for (;;) {
    page.data = report_json(report, limits);
    std::string text = to_html(page);
    if (text.size() <= kMaxBytes || limits.events < 500) return text;
    limits.halve();
  }
}

void write_report_html(const ReportData& report, const std::string& path) {
  write_file_atomic(path, report_html(report));
}

}  // namespace hocket::diagnose
