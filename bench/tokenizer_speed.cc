// SPDX-License-Identifier: Apache-2.0
// Encodes texts again and again, for bench/tokenizer_speed.py: hocket_tokenizer_speed TOKENIZER
// TEXTS TEXTS has a JSON string a line. For every line of standard input all texts are encoded, by
// an encoder that knows no word yet; the CPU seconds, the number of ids and their hash are printed.
#include <fmt/format.h>

#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokenizer/tokenizer.h"

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace hocket;
  try {
    if (argc != 3) fail("tokenizer_speed", "expected a tokenizer and a file of texts");
    const data::Tokenizer tokenizer = data::Tokenizer::load(argv[1]);
    std::vector<std::string> texts;
    const std::string file = read_file(argv[2]);
    for (size_t at = 0, end; at < file.size(); at = end + 1) {
      end = std::min(file.find('\n', at), file.size());
      texts.push_back(parse_json(file.substr(at, end - at), argv[2]).get<std::string>());
    }
    std::vector<int32_t> ids;
    for (std::string line; std::getline(std::cin, line);) {
      ids.clear();
      const double start = cpu_seconds();
      data::Encoder encoder(tokenizer);
      for (const std::string& text : texts) {
        encoder.encode(text, &ids);
      }
      const double took = cpu_seconds() - start;
      const std::string_view bytes(reinterpret_cast<const char*>(ids.data()),
                                   ids.size() * sizeof ids[0]);
      fmt::print("{} {} {:016x}\n", took, ids.size(), hash64(bytes));
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
