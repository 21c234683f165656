// SPDX-License-Identifier: Apache-2.0
// The timelines of a report as JSON.
#pragma once

#include "base/json_writer.h"
#include "diagnose/report.h"
#include "diagnose/report_json.h"

namespace hocket::diagnose {

/// Puts the member "timelines": the measured step and the predicted one, as tasks; and as passes
/// where there are several stages, or more tasks than the page holds.
void put_timelines(JsonWriter& out, const ReportData& report, const ReportLimits& limits);

}  // namespace hocket::diagnose
