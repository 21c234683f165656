// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/missing_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace hocket::checkpoint {

namespace {

const FileRecord& file_of(const Checkpoint& from, const char* name) {
  static const FileRecord none;
  const auto found = from.record().files.find(name);
  return found == from.record().files.end() ? none : found->second;
}

/// Returns the index of the first run of a range that may end after `byte`.
int64_t first_run(const Range& range, int64_t byte) {
  if (range.times == 1) return 0;
  return std::max<int64_t>(0, (byte - range.begin - range.length) / range.stride);
}

}  // namespace

MissingParts::Index::Index(const FileRecord& file) {
  for (const Part& part : file.parts) {
    for (const Range& range : part.ranges) {
      entries.push_back({range, &part, 0});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.range.begin < b.range.begin; });
  int64_t furthest = 0;
  for (Entry& entry : entries) {
    furthest = entry.furthest = std::max(furthest, entry.range.end());
  }
}

template <class Use>
void MissingParts::Index::for_each(int64_t begin, int64_t end, const Use& use) const {
  auto at =
      std::lower_bound(entries.begin(), entries.end(), end,
                       [](const Entry& entry, int64_t byte) { return entry.range.begin < byte; });
  while (at != entries.begin() && (at - 1)->furthest > begin) {
    --at;
    if (at->range.end() > begin) {
      use(*at);
    }
  }
}

MissingParts::MissingParts(const Checkpoint& from)
    : from_(from),
      model_(file_of(from, from.adapter() ? kAdapterPartFile : kModelPartFile)),
      optimizer_(file_of(from, kOptimizerPartFile)) {}

void MissingParts::need_param(std::string_view name, int64_t first, int64_t count) {
  for (const models::WeightSlice& slice : from_.slices(name)) {
    const int64_t from = std::max(first, slice.offset);
    const int64_t to = std::min(first + count, slice.offset + slice.numel());
    if (from < to) {
      const TensorFiles::Entry entry = from_.tensor_file().find(slice.name);
      models::for_each_run(slice, from, to - from,
                           [&](const models::WeightRun& run) { need(name, entry, run); });
    }
  }
}

void MissingParts::need_optimizer(std::string_view name, const graph::TensorType& type,
                                  int64_t first, int64_t count) {
  need(name, from_.optimizer_tensor(name, type), {first, first, count});
}

/// Records the bytes of a run of a stored tensor as missing unless this host stores them.
void MissingParts::need(std::string_view name, const TensorFiles::Entry& entry,
                        const models::WeightRun& run) {
  const Index& index =
      entry.file == from_.tensor_file().find(entry.tensor->name).file ? model_ : optimizer_;
  const int64_t size = size_of(entry.tensor->type), begin = entry.tensor->begin;
  here(index, entry)
      .missing(begin + run.stored * size, run.count * size, [&](int64_t at, int64_t bytes) {
        if (missing_.empty() || missing_.back().tensor != name) {
          const int64_t skipped = (at - begin) / size - run.stored;
          const int64_t element = run.element + skipped * run.stride;
          const int64_t last = element + (bytes / size - 1) * run.stride;
          missing_.push_back({std::string(name), element, last, writer_of(index, at), 0});
        }
        missing_.back().elements += bytes / size;
      });
}

/// Returns the byte intervals of a stored tensor that this host has.
const Intervals& MissingParts::here(const Index& index, const TensorFiles::Entry& entry) {
  if (known_ == entry.tensor) return here_;
  known_ = entry.tensor;
  here_ = {};
  const int64_t begin = known_->begin, end = begin + known_->bytes();
  index.for_each(begin, end, [&](const Index::Entry& found) {
    if (found.part->host != from_.host()) return;
    const Range& range = found.range;
    for (int64_t i = first_run(range, begin); i < range.times; ++i) {
      const int64_t at = range.begin + i * range.stride;
      if (at >= end) break;
      here_.add(at, range.length);
    }
  });
  return here_;
}

std::string MissingParts::writer_of(const Index& index, int64_t byte) const {
  std::string writer;
  index.for_each(byte, byte + 1, [&](const Index::Entry& found) {
    const Range& range = found.range;
    const int64_t at = range.begin + first_run(range, byte) * range.stride;
    const bool inside =
        (byte >= at && byte < at + range.length) ||
        (range.times > 1 && byte >= at + range.stride && byte < at + range.stride + range.length);
    if (inside) {
      const auto host = static_cast<size_t>(found.part->host);
      writer = fmt::format("rank {} on host {} ({})", found.part->rank, host,
                           from_.record().hosts[host].name);
    }
  });
  return writer.empty() ? "no rank" : writer;
}

std::string MissingParts::text() const {
  if (missing_.empty()) return "";
  constexpr size_t kShown = 3;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, missing_.size()); ++i) {
    const Missing& lack = missing_[i];
    shown.push_back(fmt::format("{} elements of {}, the first run from {} to {}, written by {}",
                                lack.elements, lack.tensor, lack.first, lack.last, lack.writer));
  }
  std::string text = fmt::format(
      "this folder has the part of host {} of {}; the ranks on this host need data of others: {}",
      from_.host(), from_.record().hosts.size(), join(shown, "; "));
  if (missing_.size() > kShown) {
    text += fmt::format("; and {} more tensors", missing_.size() - kShown);
  }
  return text +
         "; try the plan and the hosts that saved it, or a whole checkpoint on every host (hocket "
         "checkpoint join), or an output.dir that all hosts share";
}

}  // namespace hocket::checkpoint
