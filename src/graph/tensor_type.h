// SPDX-License-Identifier: Apache-2.0
// Element types, tensor types and node attributes: the vocabulary shared by graph, program,
// check, simulator and kernels.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hocket::graph {

enum class DType : uint8_t { f32, f64, bf16, i32, i64 };

int64_t size_of(DType dtype);
const char* to_string(DType dtype);
DType parse_dtype(std::string_view text);
inline bool is_floating(DType dtype) { return dtype <= DType::bf16; }

using Dims = std::vector<int64_t>;

/// Type of a logical (or local) tensor.
///
/// A *routed* tensor holds the rows that a router sent to experts. Its logical dims are
/// [E, T, F...] (experts, tokens, features), sparse: row (e, t) exists when token t chose expert
/// e. Storage is the existing rows in (e, t) order, `[rows, F...]`, and `rows` is known only at run
/// time from the counts per expert; at most `T * min(top_k, E)` rows exist. With this view the
/// usual split/partial algebra covers expert parallelism: split(1) is "by token", split(0) "by
/// expert", and the step from one to the other is an all-to-all.
struct TensorType {
  DType dtype = DType::f32;
  Dims dims;
  int32_t top_k = 0;  ///< > 0 marks a routed tensor

  bool routed() const { return top_k > 0; }
  int64_t max_rows() const;  ///< routed only: bound on the number of rows
  int64_t row_size() const;  ///< routed only: elements per row
  int64_t numel() const;     ///< elements stored (a bound, for routed tensors)
  int64_t bytes() const { return numel() * size_of(dtype); }
  bool operator==(const TensorType&) const = default;
  auto operator<=>(const TensorType&) const = default;
};

/// The first floating-point type among inputs, then outputs: what an op computes in.
std::optional<DType> compute_dtype(std::span<const TensorType> in, std::span<const TensorType> out);

std::string to_string(const TensorType& type);  ///< "f32[128,64]", "f32[8,128,64]@2" if routed
TensorType parse_tensor_type(std::string_view text);  ///< inverse of to_string; throws Error

/// Attributes of an op: small, ordered, printable, part of its identity.
using Attr = std::variant<int64_t, double, std::string>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> init) : map_(init) {}
  int64_t i(std::string_view key) const;  ///< throws Error when absent or of another type
  double f(std::string_view key) const;
  const std::string& s(std::string_view key) const;
  int64_t i_or(std::string_view key, int64_t fallback) const;
  bool has(std::string_view key) const { return map_.find(key) != map_.end(); }
  void set(std::string key, Attr value) { map_[std::move(key)] = std::move(value); }
  void erase(std::string_view key);
  bool empty() const { return map_.empty(); }
  const auto& items() const { return map_; }
  bool operator==(const Attrs&) const = default;
  auto operator<=>(const Attrs&) const = default;

 private:
  std::map<std::string, Attr, std::less<>> map_;
};

/// `{eps=1e-05 k=2 kind="llama3"}`, "" when empty. Strings stand in `quote` (\" or ') and hold
/// neither of the two themselves, nor line ends (base/text.h, escape).
std::string to_string(const Attrs& attrs, char quote = '"');
Attrs parse_attrs(
    std::string_view text);  ///< inverse of to_string, with either quote; throws Error

}  // namespace hocket::graph
