// SPDX-License-Identifier: Apache-2.0
// Describes a run's data in its report, and keeps the sample that is drawn before the first step.
#pragma once

#include <optional>
#include <string>

#include "diagnose/report.h"
#include "train/training_data.h"

namespace hocket::train {

/// Adds the first sequences as the model sees them, with their trained tokens, and the lengths of
/// all examples or documents.
void describe_data(const TrainingData& data, int64_t seq_len, diagnose::ReportData* report);

/// Writes a sample into a folder, where a resumed training finds it for its report.
void keep_sample(const std::string& folder, const diagnose::Sample& sample);
/// Removes the one of an earlier training.
void forget_sample(const std::string& folder);
/// Returns that sample; nothing if there is none, or one of another prompt.
std::optional<diagnose::Sample> kept_sample(const std::string& folder, const std::string& prompt);

}  // namespace hocket::train
