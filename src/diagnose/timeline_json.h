// SPDX-License-Identifier: Apache-2.0
// Timelines of a report as JSON.
#pragma once

#include "base/json_writer.h"
#include "diagnose/report.h"
#include "diagnose/report_json.h"

namespace hocket::diagnose {

/// Writes the member "timelines": the measured step and the predicted one, as tasks. If there are
/// several stages, or more tasks than the page holds, also as passes.
void put_timelines(JsonWriter& out, const ReportData& report, const ReportLimits& limits);

}  // namespace hocket::diagnose
