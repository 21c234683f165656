// SPDX-License-Identifier: Apache-2.0
#include "data/examples/token_files.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace hocket::data {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kHead = 34;  // magic, version, type, two counts
constexpr int64_t kBlock = 1 << 16;

/// Reads a little-endian integer.
int64_t integer_at(const char* from, int64_t bytes, bool is_signed) {
  uint64_t value = 0;
  for (int64_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
  }
  const int unused = static_cast<int>(64 - 8 * bytes);
  return is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

}  // namespace

void TokenFiles::broken(const std::string& what) const {
  fail("data", "{}: {}; expected the index of tokens by Megatron-LM", index_.path(), what);
}

TokenFiles::TokenFiles(const std::string& prefix) : index_(prefix + ".idx"), ids_(prefix + ".bin") {
  if (index_.size() < kHead) {
    broken(fmt::format("it has {} bytes, less than its head", index_.size()));
  }
  char head[kHead];
  index_.read(0, head, kHead);
  if (std::string_view(head, kMagic.size()) != kMagic) {
    broken("it does not begin with MMIDIDX");
  }
  const int64_t version = integer_at(head + 9, 8, true), type = head[17];
  if (version != 1) {
    broken(fmt::format("its version is {}; expected 1", version));
  }
  switch (type) {
    case 1:
    case 2:
      id_bytes_ = 1;
      break;
    case 3:
    case 8:
      id_bytes_ = 2;
      break;
    case 4:
      id_bytes_ = 4;
      break;
    case 5:
      id_bytes_ = 8;
      break;
    default:
      broken(fmt::format("its type of ids is {}; expected an integer type (1 to 5, or 8)", type));
  }
  signed_ids_ = type != 1 && type != 8;
  const int64_t sequences = integer_at(head + 18, 8, true), ends = integer_at(head + 26, 8, true);
  // Counts that the file has room for: sums of their bytes do not overflow.
  if (sequences < 0 || sequences > index_.size() / 12 || ends < 1 || ends > index_.size() / 8) {
    broken(fmt::format("it counts {} sequences and {} ends of documents in {} bytes", sequences,
                       ends, index_.size()));
  }
  lengths_ = {kHead, sequences, 4, 0, ""};
  places_ = {kHead + 4 * sequences, sequences, 8, 0, ""};
  ends_ = {kHead + 12 * sequences, ends, 8, 0, ""};
  const int64_t size = ends_.begin + 8 * ends;
  if (index_.size() == size + sequences && sequences > 0) {
    broken("its sequences have modes, as those of images");
  }
  if (index_.size() != size) {
    broken(fmt::format("it has {} bytes; its counts stand for {}", index_.size(), size));
  }
  documents_ = ends - 1;
  check_sizes();
}

int64_t TokenFiles::number(Column* column, int64_t at) {
  if (column->block.empty() || at < column->first ||
      at >= column->first + std::ssize(column->block) / column->bytes) {
    const int64_t count = std::min(kBlock, column->count - at);
    column->first = at;
    column->block.resize(static_cast<size_t>(count * column->bytes));
    index_.read(column->begin + at * column->bytes, column->block.data(), column->block.size());
  }
  return integer_at(column->block.data() + (at - column->first) * column->bytes, column->bytes,
                    true);
}

void TokenFiles::check_sizes() {
  int64_t before = number(&ends_, 0);
  if (before != 0) {
    broken(fmt::format("its first document begins at sequence {}", before));
  }
  for (int64_t i = 1; i <= documents_; ++i) {
    const int64_t end = number(&ends_, i);
    if (end < before || end > lengths_.count) {
      broken(fmt::format("document {} ends at sequence {} of {}", i - 1, end, lengths_.count));
    }
    before = end;
  }
  if (before != lengths_.count) {
    broken(fmt::format("its documents have {} of {} sequences", before, lengths_.count));
  }
  int64_t total = 0;
  for (int64_t i = 0; i < lengths_.count; ++i) {
    const int64_t length = number(&lengths_, i);
    const int64_t place = number(&places_, i);
    if (length < 0 || place < 0 || place > ids_.size() - length * id_bytes_) {
      broken(fmt::format("sequence {} has {} ids at byte {} of {}, which has {}", i, length, place,
                         ids_.path(), ids_.size()));
    }
    total = std::min(total, ids_.size()) + length * id_bytes_;  // a wrong sum is not summed further
  }
  if (total != ids_.size()) {
    broken(
        fmt::format("its sequences have {} bytes, and {} has {}", total, ids_.path(), ids_.size()));
  }
}

int64_t TokenFiles::bytes_of(int64_t document) {
  int64_t count = 0;
  for (int64_t i = number(&ends_, document); i < number(&ends_, document + 1); ++i) {
    count += number(&lengths_, i);
  }
  return count * id_bytes_;
}

std::vector<int32_t> TokenFiles::read(int64_t document) {
  std::vector<int32_t> ids;
  std::string bytes;
  for (int64_t i = number(&ends_, document); i < number(&ends_, document + 1); ++i) {
    const int64_t length = number(&lengths_, i);
    bytes.resize(static_cast<size_t>(length * id_bytes_));
    ids_.read(number(&places_, i), bytes.data(), bytes.size());
    for (int64_t k = 0; k < length; ++k) {
      const int64_t id = integer_at(bytes.data() + k * id_bytes_, id_bytes_, signed_ids_);
      if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
        fail("example", "id {} is {}; expected 0 to 2147483647", std::ssize(ids), id);
      }
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

}  // namespace hocket::data
