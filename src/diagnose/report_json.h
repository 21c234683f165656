// SPDX-License-Identifier: Apache-2.0
// The data of a report as compact JSON, cut down to what one page can hold.
#pragma once

#include <cstddef>
#include <string>

#include "diagnose/report.h"

namespace hocket::diagnose {

/// Upper bounds on what goes into the page.
struct ReportLimits {
  size_t points = 1200;         ///< of a training curve; longer ones become means of equal pieces
  size_t events = 16000;        ///< of each timeline
  size_t ranks = 64;            ///< in the breakdown by rank, of the passes of a step
  size_t blocks = 6000;         ///< of all memory plans; the largest stay
  size_t load_values = 100000;  ///< layers x experts x snapshots
  size_t text = 64 << 10;       ///< bytes of the configuration, of a sample

  void halve() { points /= 2, events /= 2, blocks /= 2, load_values /= 2, text /= 2; }
};

/// Every '<' is escaped, so that the text is safe inside <script>; bytes that are not UTF-8 become
/// U+FFFD; numbers that are not finite become null.
std::string report_json(const ReportData& report, const ReportLimits& limits);

}  // namespace hocket::diagnose
