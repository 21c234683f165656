// SPDX-License-Identifier: Apache-2.0
// A synthetic but plausible run of the quickstart, for tests of the report and for viewing it.
#pragma once

#include "diagnose/report.h"

namespace hocket::diagnose {

/// Returns a report for one rank, or for four (two pipeline stages of two expert-parallel
/// replicas).
ReportData demo_report(int ranks, uint64_t seed);

}  // namespace hocket::diagnose
