// SPDX-License-Identifier: Apache-2.0
// A libhocket_torch.so of another build is refused before anything of it is called: its objects
// would be taken for what they are not.
#include "comm/c10d.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/process.h"

namespace hocket::comm {
namespace {

/// Makes a library of this C text, has it loaded, and returns what is said of it.
std::string said_of(const std::string& text, const std::string& library) {
  run_command("cc -x c -shared -fPIC -o '" + library + "' -", text, "cc");
  ::setenv("HOCKET_TORCH_LIBRARY", library.c_str(), 1);
  std::string said;
  try {
    Place place;
    place.size = 2;
    place.address = "localhost";
    open_c10d(place, std::chrono::seconds(1));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    said = error.what();
  }
  ::unsetenv("HOCKET_TORCH_LIBRARY");
  return said;
}

TEST(C10d, ALibraryOfAnotherBuildIsRefused) {
  if (std::system("cc --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no C compiler";
  }
  const std::string opens = "void* hocket_open_c10d(void) { __builtin_trap(); }\n";
  const std::string older = ::testing::TempDir() + "older.so";
  const std::string said = said_of(opens, older);
  EXPECT_NE(said.find(older + " is of another build"), said.npos) << said;
  EXPECT_NE(said.find("is none; expected "), said.npos) << said;
  EXPECT_NE(said.find("try make build"), said.npos) << said;
  const std::string other = said_of(opens + "const char* hocket_wire(void) { return \"0123\"; }\n",
                                    ::testing::TempDir() + "other.so");
  EXPECT_NE(other.find("is 0123; expected "), other.npos) << other;
  // And one that is none at all.
  const std::string file = ::testing::TempDir() + "text.so";
  write_file_atomic(file, "text");
  ::setenv("HOCKET_TORCH_LIBRARY", file.c_str(), 1);
  EXPECT_THROW(open_c10d(Place(), std::chrono::seconds(1)), Error);
  ::unsetenv("HOCKET_TORCH_LIBRARY");
}

}  // namespace
}  // namespace hocket::comm
