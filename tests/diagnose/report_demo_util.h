// SPDX-License-Identifier: Apache-2.0
// A made-up but plausible run of the quickstart, for tests of the report and for looking at it.
#pragma once

#include "diagnose/report.h"

namespace hocket::diagnose {

/// One rank, or four (two pipeline stages of two expert-parallel replicas).
ReportData demo_report(int ranks, uint64_t seed);

}  // namespace hocket::diagnose
