// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/upconvert.h"

#include <vector>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/kernels.h"
#include "ops/op.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using graph::DType;

/// Elements that are there: of a routed operand those of the rows that its counts say, or of a row
/// for each of a token's experts.
int64_t elements(const KernelArgs& args, const graph::TensorType& type) {
  if (!type.routed()) return type.numel();
  for (const TensorRef& other : args.in) {
    const graph::TensorType& counts = *other.type;
    if (counts.dtype == DType::i64 && counts.dims.size() == 1 && counts.dims[0] == type.dims[0]) {
      return routed_rows(other) * type.row_size();
    }
  }
  for (const TensorRef& other : args.in) {
    if (other.type->dtype == DType::i32 && other.type->dims.size() == 2) {  // row_of
      return count(other) * type.row_size();
    }
  }
  return type.numel();
}

/// An operand, and its f32 copy.
struct Copied {
  const TensorRef* operand = nullptr;  ///< null: it is taken as it is
  int64_t count = 0;
  float* data = nullptr;
};

}  // namespace

void on_f32_copies(const KernelArgs& args, KernelFn kernel) {
  Scratch scratch(args);
  const size_t num_in = args.in.size();
  std::vector<TensorRef> operands(args.in.begin(), args.in.end());
  operands.insert(operands.end(), args.out.begin(), args.out.end());
  std::vector<graph::TensorType> types(operands.size());
  std::vector<Copied> copies(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const TensorRef& operand = i < num_in ? args.in[i] : args.out[i - num_in];
    if (!ops::is_short(*operand.type)) continue;
    Copied& copy = copies[i];
    copy = {&operand, elements(args, *operand.type), nullptr};
    for (size_t k = 0; k < num_in && i >= num_in && !copy.data; ++k) {
      const bool same = copies[k].operand && copies[k].operand->data == operand.data &&
                        copies[k].count == copy.count;
      copy.data = same ? copies[k].data : nullptr;
    }
    if (!copy.data) {
      copy.data = scratch.take<float>(copy.count);
      if (i < num_in || accumulates(args, static_cast<int>(i - num_in))) {
        convert(operand.type->dtype, operand.data, DType::f32, copy.data, copy.count);
      }
    }
    types[i] = *operand.type;
    types[i].dtype = DType::f32;
    operands[i].data = copy.data;
    operands[i].type = &types[i];
  }
  KernelArgs wide = args;
  wide.in = std::span(operands).first(num_in);
  wide.out = std::span(operands).subspan(num_in);
  wide.workspace = scratch.rest();
  wide.workspace_bytes = scratch.left();
  kernel(wide);
  for (size_t i = num_in; i < copies.size(); ++i) {
    if (const Copied& copy = copies[i]; copy.operand) {
      convert(DType::f32, copy.data, copy.operand->type->dtype, copy.operand->data, copy.count);
    }
  }
}

}  // namespace hocket::kernels::HOCKET_CPU
