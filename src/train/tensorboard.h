// SPDX-License-Identifier: Apache-2.0
// Event files of TensorBoard, beside metrics.jsonl and with its tags: one per start of a run.
#pragma once

#include <cstdint>
#include <string>

namespace hocket::train {

class EventFile {
 public:
  /// Begins events.out.tfevents.<seconds>.<host>.<process> in the folder, for the steps after
  /// `step`: TensorBoard drops those that earlier files have beyond it.
  EventFile(const std::string& folder, int64_t step);

  /// Adds the numbers of a line of metrics.jsonl, under tags as keys ("train/loss"), at its step.
  void append(const std::string& line);
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::string path_;
};

/// CRC-32C (Castagnoli), as iSCSI has it.
uint32_t crc32c(const std::string& bytes);

}  // namespace hocket::train
