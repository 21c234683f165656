// SPDX-License-Identifier: Apache-2.0
// Kernels are found by the types of all their operands: signatures, and for every op that any other
// type of any operand finds none.
#include "kernels/signature.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/backend.h"
#include "ops/op.h"

namespace hocket::kernels {
namespace {

using graph::DType;
using graph::TensorType;

std::vector<TensorType> types(std::initializer_list<const char*> texts) {
  std::vector<TensorType> list;
  for (const char* text : texts) {
    list.push_back(graph::parse_tensor_type(std::string(text) + "[32]"));
  }
  return list;
}

bool fits(const char* signature, std::initializer_list<const char*> in,
          std::initializer_list<const char*> out, DType compiled_for = DType::f32) {
  const std::vector<TensorType> ins = types(in), outs = types(out);
  return takes(signature, compiled_for, {ins, outs});
}

TEST(Signature, MatchesTheTypesOfOperands) {
  EXPECT_TRUE(fits("T,i32->T", {"f32", "i32"}, {"f32"}));
  EXPECT_TRUE(fits("T,i32->T", {"f64", "i32"}, {"f64"}, DType::f64));
  EXPECT_FALSE(fits("T,i32->T", {"f64", "i32"}, {"f64"}));
  EXPECT_FALSE(fits("T,i32->T", {"f32", "i64"}, {"f32"}));
  EXPECT_FALSE(fits("T,i32->T", {"f32", "i32"}, {"f64"}));
  EXPECT_FALSE(fits("T,i32->T", {"f32"}, {"f32"}));
  EXPECT_FALSE(fits("T,i32->T", {"f32", "i32", "i32"}, {"f32"}));
  EXPECT_FALSE(fits("T,i32->T", {"f32", "i32"}, {}));
  EXPECT_TRUE(fits("T->T|T,i64->T", {"f32"}, {"f32"}));
  EXPECT_TRUE(fits("T->T|T,i64->T", {"f32", "i64"}, {"f32"}));
  EXPECT_TRUE(fits("f64*->f64", {}, {"f64"}));
  EXPECT_TRUE(fits("f64*->f64", {"f64", "f64", "f64"}, {"f64"}));
  EXPECT_FALSE(fits("f64*->f64", {"f64", "f32", "f64"}, {"f64"}));
  EXPECT_TRUE(fits("T->f64,T?,T?", {"f32"}, {"f64"}));
  EXPECT_TRUE(fits("T->f64,T?,T?", {"f32"}, {"f64", "f32", "f32"}));
  EXPECT_FALSE(fits("T->f64,T?,T?", {"f32"}, {"f64", "f32", "i32"}));
  EXPECT_TRUE(fits("T->T,S", {"bf16"}, {"bf16", "f32"}, DType::bf16));
  EXPECT_TRUE(fits("T->T,S", {"f16"}, {"f16", "f32"}, DType::f16));
  EXPECT_TRUE(fits("T->T,S", {"f64"}, {"f64", "f64"}, DType::f64));
  EXPECT_FALSE(fits("T->T,S", {"bf16"}, {"bf16", "bf16"}, DType::bf16));
  EXPECT_FALSE(fits("T->T,S", {"f64"}, {"f64", "f32"}, DType::f64));
  for (const char* gradient : {"bf16", "f32"}) {
    EXPECT_TRUE(fits("T->G", {"bf16"}, {gradient}, DType::bf16));
  }
  EXPECT_FALSE(fits("T->G", {"bf16"}, {"f16"}, DType::bf16));
  EXPECT_FALSE(fits("T->G", {"f32"}, {"bf16"}));
  EXPECT_TRUE(fits("f8,f8->T", {"f8_e4m3", "f8_e5m2"}, {"bf16"}, DType::bf16));
  EXPECT_FALSE(fits("f8,f8->T", {"f8_e4m3", "f8_e4m3"}, {"f32"}));
  EXPECT_TRUE(fits("->any", {}, {"i4/f16:32"}));
  EXPECT_TRUE(fits("plain->plain", {"bf16"}, {"f8_e4m3"}));
  EXPECT_FALSE(fits("plain->plain", {"i4"}, {"f32"}));
}

TEST(Signature, ElementsWithScalesAreNotPlain) {
  EXPECT_FALSE(fits("T->T", {"f8_e4m3/f8_e8m0:32"}, {"f8_e4m3"}, DType::f8_e4m3));
  EXPECT_FALSE(fits("plain->plain", {"i8/f32:32"}, {"f32"}));
  EXPECT_FALSE(fits("i8->f32", {"i8/f32:32"}, {"f32"}));
}

/// Returns whether the op takes such inputs and gives such outputs.
bool gives(const ops::Op& op, const ops::Attrs& attrs, const std::vector<TensorType>& in,
           const std::vector<TensorType>& out) {
  try {
    return op.infer(attrs, in) == out;
  } catch (const Error&) {
    return false;
  }
}

/// The samples' types, and the same with another one in place of f64 where the op takes that.
TEST(CpuKernels, AreFoundForTheTypesOfTheirOpsAndNoOthers) {
  const Backend& cpu = *cpu_backend();
  // Ops of any type, on lists with bounds that only the op knows.
  const std::set<std::string> takes_any = {"copy", "zero", "regroup"};
  int found = 0, refused = 0;
  for (const ops::Op* op : ops::all()) {
    for (const ops::Sample& sample : op->samples()) {
      SCOPED_TRACE(op->name + " " + sample.name);
      const size_t n =
          sample.num_inputs < 0 ? sample.types.size() : static_cast<size_t>(sample.num_inputs);
      const std::vector<TensorType> in(sample.types.begin(),
                                       sample.types.begin() + static_cast<std::ptrdiff_t>(n));
      const std::vector<TensorType> out = op->infer(sample.attrs, in);
      EXPECT_NE(cpu.find(op->name, Device::cpu, {in, out}), nullptr);
      EXPECT_EQ(cpu.find(op->name, Device::cuda, {in, out}), nullptr);
      ++found;
      if (takes_any.contains(op->name)) continue;
      for (size_t i = 0; i < in.size() + out.size(); ++i) {
        for (int other = 0; other < graph::kNumDTypes; ++other) {
          std::vector<TensorType> changed_in = in, changed_out = out;
          TensorType& type = i < in.size() ? changed_in[i] : changed_out[i - in.size()];
          if (type.dtype == static_cast<DType>(other)) continue;
          type.dtype = static_cast<DType>(other);
          // A cast takes any whole bytes.
          if (op->name == "cast" && graph::bits_of(type.dtype) >= 8) continue;
          const KernelFn kernel = cpu.find(op->name, Device::cpu, {changed_in, changed_out});
          if (kernel && graph::is_floating(type.dtype) && graph::bits_of(type.dtype) >= 16) {
            // Covers ops with other operands of another type than the kernel is compiled for.
            ops::Attrs attrs = sample.attrs;
            if (attrs.has("dtype")) {
              attrs.set("dtype", std::string(to_string(type.dtype)));
            }
            EXPECT_TRUE(gives(*op, attrs, changed_in, changed_out)) << "operand " << i;
            continue;
          }
          EXPECT_EQ(kernel, nullptr) << "operand " << i << " as " << to_string(type);
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace hocket::kernels
