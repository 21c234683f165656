// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 server: a thread per connection, whole bodies in, whole answers or streams out. A closed
// connection is seen while an answer is made. The implementation stands on cpp-httplib, which no
// other file sees.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/byte_budget.h"

namespace hocket::serve {

/// A connection while its request is answered. Used by the thread that answers.
class HttpPeer {
 public:
  virtual ~HttpPeer() = default;
  /// Returns whether the client has closed its end, or has taken nothing for `write_timeout_s`.
  virtual bool gone() = 0;
};

struct HttpRequest {
  std::string method, path;  ///< the path without its query, percent decoding done
  std::vector<std::pair<std::string, std::string>> headers;  ///< names in lower case
  std::string body = {};
  std::string address;  ///< of the client

  /// Returns the first header of that name (in lower case); "" if there is none.
  std::string_view header(std::string_view name) const;
};

/// Takes the parts of a streamed answer. `write` is false once the client is gone.
class HttpStream : public HttpPeer {
 public:
  virtual bool write(std::string_view part) = 0;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// Writes the body in parts in place of `body`; returns when it has ended or the client is gone.
  std::function<void(HttpStream&)> stream = nullptr;
};

/// Answers a request; called by several threads at once. Throws nothing.
using HttpHandler = std::function<HttpResponse(const HttpRequest&, HttpPeer&)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                       ///< 0: any free one
  int64_t max_body = int64_t{32} << 20;  ///< bytes of a request's body
  ByteBudget* budget = nullptr;          ///< of all bodies; outlives the server; null: none
  int max_connections = 320;             ///< later ones wait in the system's queue
  double head_timeout_s = 5;             ///< for the head: silent clients take places of others
  double read_timeout_s = 30;            ///< for the body
  double write_timeout_s = 30;           ///< without progress of a client that reads
  double idle_timeout_s = 5;             ///< of a connection between requests
  /// Makes the answer to a request that this layer refuses: status, text.
  std::function<HttpResponse(int status, const std::string& text)> error = nullptr;
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  ///< stop()
  virtual int port() const = 0;
  /// Ends every connection and all threads. Answers that are being made see a closed connection;
  /// whole ones that are being written have 5 s to be taken. May be called concurrently, and again.
  virtual void stop() = 0;
  virtual int64_t connections() const = 0;  ///< open now
};

/// Listens and answers from now on. Throws Error if the address cannot be had.
std::unique_ptr<HttpServer> open_http(const HttpOptions& options, HttpHandler handler);

}  // namespace hocket::serve
