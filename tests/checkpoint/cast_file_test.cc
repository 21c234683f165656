// SPDX-License-Identifier: Apache-2.0
// Casts between all pairs of types, compared with PyTorch on the file that
// tests/parity/cast_parity_test.py writes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "checkpoint/safetensors.h"
#include "tests/kernels/cast_util.h"

namespace hocket::test {
namespace {

using graph::DType;

/// The file has a tensor `<from>.<to>.in` and PyTorch's cast of it, `<from>.<to>.out`.
TEST(Cast, EqualsPyTorch) {
  const char* path = std::getenv("HOCKET_CAST_FILE");
  if (!path) {
    GTEST_SKIP() << "run by tests/parity/cast_parity_test.py";
  }
  const checkpoint::SafetensorsFile file(path);
  int pairs = 0;
  for (DType from : kElementTypes) {
    for (DType to : kElementTypes) {
      const std::string name = std::string(to_string(from)) + "." + to_string(to);
      const checkpoint::StoredTensor* in = file.find(name + ".in");
      const checkpoint::StoredTensor* out = file.find(name + ".out");
      ASSERT_TRUE(in && out) << name;
      ASSERT_EQ(in->type, checkpoint::stored_type(from)) << name;
      ASSERT_EQ(out->type, checkpoint::stored_type(to)) << name;
      std::vector<std::byte> data(static_cast<size_t>(in->bytes()));
      std::vector<std::byte> want(static_cast<size_t>(out->bytes()));
      file.read(*in, 0, in->numel, from, data.data());
      file.read(*out, 0, out->numel, to, want.data());
      const std::vector<double> numbers = unpack(from, data);
      const std::vector<double> a = unpack(to, cast(from, to, data)), b = unpack(to, want);
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(same(a[i], b[i]))
            << name << " of " << numbers[i] << " is " << a[i] << "; PyTorch says " << b[i];
      }
      ++pairs;
    }
  }
  EXPECT_EQ(pairs, 100);
  std::cout << pairs << " pairs compared with PyTorch\n";
}

}  // namespace
}  // namespace hocket::test
