// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of data sources: a file read whole, and one example from one object.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/examples/source.h"
#include "tests/data/data_util.h"

namespace hocket::data {

using OrderedJson = nlohmann::ordered_json;

struct ReadSource {
  ReadReport report;
  std::vector<Example> examples;
};

inline ReadSource read_all(const SourceOptions& options) {
  ReadSource read;
  read.report = read_source(options, [&](Example&& example) {
    read.examples.push_back(std::move(example));
    return true;
  });
  return read;
}

inline SourceOptions source_of(const std::string& path) {
  SourceOptions options;
  options.path = path;
  return options;
}

/// Reads the text of a .jsonl file.
inline ReadSource read_lines(std::string_view text, SourceOptions options = {}) {
  const TempFolder folder;
  options.path = folder.add("data.jsonl", text);
  return read_all(options);
}

/// Returns the one example of one object.
inline Example example_of(std::string_view object, const SourceOptions& options = {}) {
  ReadSource read = read_lines(object, options);
  EXPECT_EQ(read.examples.size(), 1u) << object;
  return read.examples.empty() ? Example{} : std::move(read.examples[0]);
}

inline std::string gzip(std::string_view text) {
  z_stream state = {};
  constexpr int kGzip = 16 + MAX_WBITS;
  EXPECT_EQ(deflateInit2(&state, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - state.avail_out);
  deflateEnd(&state);
  return out;
}

/// Packs with a checksum, as the program zstd does.
inline std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* state = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(state, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(state);
  return out;
}

}  // namespace hocket::data
