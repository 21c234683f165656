// SPDX-License-Identifier: Apache-2.0
#include "graph/dtype.h"

#include "base/error.h"
#include "base/id.h"
#include "base/text.h"

namespace hocket::graph {

namespace {

constexpr struct DTypeFacts {
  DType dtype;
  const char* name;
  int64_t bits;
  bool floating;
} kDTypes[] = {
    {DType::f32, "f32", 32, true},         {DType::f64, "f64", 64, true},
    {DType::bf16, "bf16", 16, true},       {DType::i32, "i32", 32, false},
    {DType::i64, "i64", 64, false},        {DType::f16, "f16", 16, true},
    {DType::f8_e4m3, "f8_e4m3", 8, true},  {DType::f8_e5m2, "f8_e5m2", 8, true},
    {DType::f8_e8m0, "f8_e8m0", 8, false}, {DType::f4_e2m1, "f4_e2m1", 4, true},
    {DType::i8, "i8", 8, false},           {DType::u8, "u8", 8, false},
    {DType::i4, "i4", 4, false},
};
static_assert(std::size(kDTypes) == kNumDTypes);

}  // namespace

int64_t bits_of(DType dtype) { return kDTypes[place_of(dtype)].bits; }

int64_t size_of(DType dtype) {
  const DTypeFacts& row = kDTypes[place_of(dtype)];
  if (row.bits % 8 != 0) {
    fail("dtype", "an element of {} is {} bits; expected whole bytes", row.name, row.bits);
  }
  return row.bits / 8;
}

const char* to_string(DType dtype) { return kDTypes[place_of(dtype)].name; }
bool is_floating(DType dtype) { return kDTypes[place_of(dtype)].floating; }

DType parse_dtype(std::string_view text) {
  std::string names;
  for (const DTypeFacts& row : kDTypes) {
    if (text == row.name) return row.dtype;
    names += names.empty() ? row.name : std::string(", ") + row.name;
  }
  fail("dtype", "unknown '{}'; expected one of {}", text, names);
}

}  // namespace hocket::graph
