// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cast_util.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/backend.h"
#include "tests/number_util.h"

namespace hocket::test {

using graph::Attrs;
using graph::DType;
using graph::TensorType;

std::vector<std::byte> cast(DType from, DType to, const std::vector<std::byte>& data) {
  const int64_t n = static_cast<int64_t>(data.size()) / size_of(from);
  const TensorType in{from, {n}}, out{to, {n}};
  const Attrs attrs{{"dtype", std::string(to_string(to))}};
  std::vector<std::byte> result;
  for (const auto& backend : kernels::cpu_backends()) {
    std::vector<std::byte> copy = data, got(static_cast<size_t>(out.bytes()));
    const std::vector<TensorType> ins{in}, outs{out};
    const kernels::KernelFn kernel = backend->find("cast", kernels::Device::cpu, {ins, outs});
    if (!kernel) throw std::runtime_error("no kernel");
    const kernels::TensorRef from_ref{copy.data(), &in}, to_ref{got.data(), &out};
    backend->enter_thread(2);
    kernel({&attrs, std::span(&from_ref, 1), std::span(&to_ref, 1)});
    if (!result.empty()) {
      EXPECT_EQ(got, result) << backend->describe();
    }
    result = got;
  }
  return result;
}

std::vector<std::byte> pack(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> data(values.size() * static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, values[i], data.data() + i * static_cast<size_t>(size_of(dtype)));
  }
  return data;
}
std::vector<double> unpack(DType dtype, const std::vector<std::byte>& data) {
  std::vector<double> values(data.size() / static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(dtype, data.data() + i * static_cast<size_t>(size_of(dtype)));
  }
  return values;
}
std::vector<double> cast(DType from, DType to, const std::vector<double>& values) {
  return unpack(to, cast(from, to, pack(from, values)));
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace hocket::test
