// SPDX-License-Identifier: Apache-2.0
// Codecs: encoding x into fewer bytes, and decoding. An encoded value can be moved whole or in runs
// of rows, but not added. A codec is two ops with one name; every decoder takes an attribute
// `dtype`, its output's element type.
//   identity  x itself: lossless, without saving
//   int8      per row (index of dim 0) round(127 x / max|x|), and max|x| / 127
#include "ops/rules.h"

namespace hocket::ops::codec {
namespace {

void want_rows(std::string_view op, const TensorType& type) {
  want_float(op, type);
  if (type.routed() || type.dims.size() < 2 || type.dims.size() > 4) {
    fail(op, "got {}; expected rows, a dense tensor of rank 2 to 4", to_string(type));
  }
}

/// The type that codes decode to: attribute `dtype` and the dims of the codes.
TensorType decoded(std::string_view op, const Attrs& attrs, const TensorType& codes) {
  TensorType type{graph::parse_dtype(attrs.s("dtype")), codes.dims};
  want_rows(op, type);
  return type;
}

std::vector<TensorType> infer_same(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "identity codec";
  want_inputs(kOp, in, 1);
  want_rows(kOp, in[0]);
  if (attrs.has("dtype")) {
    want_dtype(kOp, in[0], graph::parse_dtype(attrs.s("dtype")));
  }
  return {in[0]};
}

std::vector<TensorType> infer_to_int8(const Attrs&, Types in) {
  want_inputs("encode_int8", in, 1);
  want_rows("encode_int8", in[0]);
  return {{DType::i8, in[0].dims}, {DType::f32, {in[0].dims[0]}}};
}
std::vector<TensorType> infer_from_int8(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "decode_int8";
  want_inputs(kOp, in, 2);
  want_dtype(kOp, in[0], DType::i8);
  const TensorType type = decoded(kOp, attrs, in[0]);
  want_vector(kOp, in[1], DType::f32, in[0].dims[0], "number of scales");
  return {type};
}

Work work_copy(const Call& call) { return memory_bound(call, 0); }
/// The greatest of a row, then a product and a rounding per element.
Work work_encode(const Call& call) {
  return {3 * static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}
Work work_decode(const Call& call) { return memory_bound(call, 1); }

const Dims kShapes[] = {{6, 4}, {4, 2, 4}, {2, 2, 2, 4}};
const Fill kFrom{.kind = Fill::Kind::from_op};
const Attrs kToF64{{"dtype", std::string("f64")}};

std::vector<Sample> samples_encode() {
  std::vector<Sample> list;
  for (const Dims& dims : kShapes) {
    const TensorType type{DType::f64, dims};
    list.push_back({to_string(type), {}, {type}, {{}}, {}});
    list.back().smooth = false;
  }
  return list;
}
/// Codes and scales of rows, made by the other op.
std::vector<Sample> samples_from_int8() {
  std::vector<Sample> list;
  for (const Dims& dims : kShapes) {
    const TensorType type{DType::f64, dims};
    const TensorType codes{DType::i8, dims}, scales{DType::f32, {dims[0]}};
    list.push_back({to_string(type),
                    kToF64,
                    {codes, scales, type},
                    {kFrom, kFrom, {}},
                    {{"encode_int8", {}, {2}, {0, 1}}}});
    list.back().num_inputs = 2;
    list.back().smooth = false;
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "encode_identity",
                 .doc = "codes = x",
                 .infer = infer_same,
                 .layout = {"ab->ab|abc->abc|abcd->abcd", "a"},
                 .work = work_copy,
                 .samples = samples_encode,
                 .codec = {"identity", Codec::Role::encode, true},
                 .takes_any_type = true});
  ops.push_back({.name = "decode_identity",
                 .doc = "x = codes",
                 .infer = infer_same,
                 .layout = {"ab->ab|abc->abc|abcd->abcd", "a"},
                 .work = work_copy,
                 .samples = samples_encode,
                 .codec = {"identity", Codec::Role::decode, true},
                 .takes_any_type = true});
  ops.push_back({.name = "encode_int8",
                 .doc = "codes[T,..] = round(x[T,..] / scale[T]), scale[T] = max|x[T,..]| / 127",
                 .infer = infer_to_int8,
                 .layout = {"ab->ab,a|abc->abc,a|abcd->abcd,a", "a"},
                 .work = work_encode,
                 .samples = samples_encode,
                 .codec = {"int8", Codec::Role::encode, false}});
  ops.push_back({.name = "decode_int8",
                 .doc = "x[T,..] = codes[T,..] scale[T], in the element type `dtype`",
                 .infer = infer_from_int8,
                 .layout = {"ab,a->ab|abc,a->abc|abcd,a->abcd", "a"},
                 .work = work_decode,
                 .samples = samples_from_int8,
                 .codec = {"int8", Codec::Role::decode, false}});
}

}  // namespace hocket::ops::codec
