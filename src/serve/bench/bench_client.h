// SPDX-License-Identifier: Apache-2.0
// Load on a server of OpenAI's interface, over plain HTTP: one thread and a socket per request.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/bench/bench_metrics.h"

namespace hocket::serve {

struct BenchServer {
  std::string host = "127.0.0.1", prefix;  ///< `prefix`: path before that of an endpoint
  int port = 8000;
  std::vector<std::pair<std::string, std::string>> headers;
};

/// Parses "http://host:port/prefix". Throws Error for anything else, such as https.
BenchServer parse_base_url(const std::string& url);

struct BenchCall {
  double at = 0;  ///< seconds after the start
  std::string body;
  int64_t prompt_tokens = 0;  ///< 0: as the server counts them
};

struct LoadOptions {
  std::string path;  ///< "/v1/completions"
  bool is_chat = false;
  std::optional<int64_t> max_concurrency;
  double timeout_s = 600;  ///< of a request
  /// Counts the tokens of a text, for servers that do not say.
  std::function<int64_t(const std::string& text)> count_tokens;
  std::function<void(int64_t finished)> progress;
  std::function<bool()> stop;  ///< true: end, requests under way fail
};

struct LoadResult {
  std::vector<MeasuredRequest> requests;  ///< in the order of the calls
  double duration = 0;                    ///< to the end of the last
};

/// Sends every call at its time, or later where max_concurrency holds it back. Throws Error if the
/// server's name is not known; whatever else goes wrong is the error of a request.
LoadResult run_load(const BenchServer& server, const std::vector<BenchCall>& calls,
                    const LoadOptions& options);

/// Returns the body of GET `path`. Throws Error unless the status is 200.
std::string http_get(const BenchServer& server, const std::string& path, double timeout_s);

}  // namespace hocket::serve
