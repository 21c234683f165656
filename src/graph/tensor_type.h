// SPDX-License-Identifier: Apache-2.0
// Element types, tensor types and node attributes: the vocabulary shared by graph, program,
// check, simulator and kernels.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/dim.h"
#include "graph/dtype.h"

namespace hocket::graph {

/// Elements that share scales: `block` neighbours along the last dim are multiplied by one number
/// of type `scale`. The elements are of at most a byte. In memory every block lies as one, its
/// elements and then its scale, so that rows are bytes that follow each other whatever they hold.
/// MXFP8 is f8_e4m3/f8_e8m0:32, MXFP4 f4_e2m1/f8_e8m0:32. NVFP4 is f4_e2m1/f8_e4m3:16; its scale of
/// the whole tensor is an operand of its own. Integers with a scale per 32 are i8/f32:32 and
/// i4/f16:32.
struct Encoding {
  int32_t block = 0;  ///< elements per scale; 0: no scales
  DType scale = DType::f32;
  explicit operator bool() const { return block > 0; }
  bool operator==(const Encoding&) const = default;
  auto operator<=>(const Encoding&) const = default;
};

/// Type of a logical (or local) tensor. With symbols among its dims its sizes are bounds; at()
/// gives the type in a step.
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
  Encoding encoding = {};

  bool routed() const { return top_k > 0; }
  bool symbolic() const;     ///< some dim is a symbol
  int64_t max_rows() const;  ///< routed only: bound on the number of rows
  int64_t row_size() const;  ///< routed only: elements per row
  int64_t numel() const;     ///< elements stored (a bound, for routed tensors)
  int64_t bytes() const { return bytes_of(numel()); }
  /// Bytes of that many neighbouring elements of it: whole blocks, and whole bytes.
  int64_t bytes_of(int64_t elements) const;
  /// Elements along the last dim that nothing may separate: a block, or those of a byte.
  int64_t granule() const;
  /// The type in a step where symbols have these values: no dim is a symbol.
  TensorType at(std::span<const int64_t> values) const;
  bool operator==(const TensorType&) const = default;
  auto operator<=>(const TensorType&) const = default;
};

/// Why no tensor can have this type, "" if one can: a last dim that cuts a block or a byte,
/// elements or scales that cannot be such.
std::string why_invalid(const TensorType& type);

/// Returns how a type disagrees with the table of its symbols, or "": a missing symbol, or another
/// bound or divisor.
std::string symbols_differ(const TensorType& type, std::span<const Symbol> symbols);
bool any_symbolic(std::span<const TensorType> types);
/// The types in a step where every symbol is as expected. Throws Error where one is not in the
/// table.
std::vector<TensorType> expected_types(std::span<const TensorType> types,
                                       std::span<const Symbol> symbols);

/// "f32[128,64]", "f32[8,128,64]@2" if routed, "f4_e2m1/f8_e8m0:32[128,64]" with an encoding
/// (element type, scale type, block), "f32[s0:4096,64]" with a symbol (graph/dim.h).
std::string to_string(const TensorType& type);
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
