// SPDX-License-Identifier: Apache-2.0
// Data of a report as compact JSON, cut down to the limits of one page.
#pragma once

#include <cstddef>
#include <string>

#include "diagnose/report.h"

namespace hocket::diagnose {

/// Upper bounds on the contents of the page.
struct ReportLimits {
  size_t points = 1200;         ///< per training curve; longer ones become means of equal pieces
  size_t events = 16000;        ///< per timeline
  size_t ranks = 64;            ///< in the breakdown by rank, and in the passes of a step
  size_t blocks = 6000;         ///< over all memory plans; the largest are kept
  size_t load_values = 100000;  ///< layers x experts x snapshots
  size_t text = 64 << 10;       ///< bytes of the configuration, and of a sample

  void halve() { points /= 2, events /= 2, blocks /= 2, load_values /= 2, text /= 2; }
};

/// Returns the data of the page. Every '<' is escaped, so that the text is safe inside <script>.
/// Bytes that are not UTF-8 become U+FFFD; numbers that are not finite become null.
std::string report_json(const ReportData& report, const ReportLimits& limits);

}  // namespace hocket::diagnose
