// SPDX-License-Identifier: Apache-2.0
// A tokenizer of bytes, a service that echoes, and clients on sockets, for tests of the server.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/http.h"
#include "serve/openai/api.h"
#include "serve/request.h"

namespace hocket::serve {

/// Token id b is the byte b; 256 is the end of text, a special token.
data::Tokenizer byte_tokenizer();
inline constexpr int32_t kEndToken = 256;

/// "<role>content|" for each message, tools before them, then "<assistant>".
data::ChatTemplate plain_template();

/// Writes `reply` (or the prompt again) byte by byte, as tokens, then the end of text.
class FakeService final : public Service {
 public:
  struct Options {
    std::string reply = {};  ///< "": the text of the prompt
    double step_s = 0;       ///< time of a token
    int64_t window = 4096, limit = 1 << 20;
    std::string failure = {};  ///< unless empty, texts fail with it after two tokens
    bool texts_fail = false;   ///< by themselves: the service does not
    bool model_fails = false;  ///< with texts_fail: Update::model_failed
    bool shut_down = false;    ///< `failure` is that
    bool held = false;         ///< no text begins before release()
  };
  explicit FakeService(Options options);
  FakeService() : FakeService(Options()) {}
  ~FakeService() override;

  RequestId submit(Request request, OnUpdate on_update) override;
  void cancel(RequestId id) override;
  Stats stats() const override;
  std::string failure() const override {
    return options_.texts_fail || options_.shut_down ? "" : options_.failure;
  }
  bool is_shut_down() const override { return options_.shut_down; }
  int64_t max_model_len() const override { return options_.window; }
  int64_t vocab_size() const override { return 257; }

  void release();
  void set_reply(const std::string& reply);
  int64_t running() const;
  int64_t cancelled() const;
  std::vector<Request> requests() const;  ///< all so far
  /// Waits until no text runs; false after 10 s.
  bool wait_idle() const;

 private:
  struct Text {
    Request request;
    OnUpdate on_update;
    std::string left;  ///< to be written
    int64_t tokens = 0;
    bool begun = false, cancelled = false;
    std::string written;
  };
  void work();
  Update step(Text* text) const;

  const Options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string reply_;
  std::map<RequestId, std::shared_ptr<Text>> texts_;
  std::vector<Request> requests_;
  RequestId next_ = 1;
  int64_t cancelled_ = 0;
  Stats stats_;
  bool stop_ = false, held_;
  std::thread thread_;
};

/// A client of one exchange that is seen to go on demand.
class FakePeer final : public HttpPeer {
 public:
  bool gone() override { return is_gone; }
  std::atomic<bool> is_gone{false};
};

/// Collects the parts of a stream; the client goes after `most` of them.
class FakeStream final : public HttpStream {
 public:
  explicit FakeStream(size_t most = SIZE_MAX) : most_(most) {}
  bool write(std::string_view part) override {
    if (gone()) return false;
    parts.emplace_back(part);
    return true;
  }
  bool gone() override { return parts.size() >= most_; }
  std::vector<std::string> parts;
  /// The events' JSON but [DONE], which must be the last one.
  std::vector<nlohmann::ordered_json> events() const;

 private:
  const size_t most_;
};

/// Options of an Api for the tokenizer of bytes.
ApiOptions fake_options();

/// A server on loopback.
class FakeServer {
 public:
  explicit FakeServer(FakeService::Options service = {}, ApiOptions api = fake_options(),
                      HttpOptions http = {});
  ~FakeServer();
  int port() const { return http_->port(); }
  HttpServer& http() { return *http_; }
  Api& api() { return *api_; }
  FakeService& service() { return service_; }

 private:
  FakeService service_;
  const data::Tokenizer tokenizer_;
  const data::ChatTemplate template_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;
};

/// A connection to a server on loopback.
class Client {
 public:
  explicit Client(int port);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  bool send(std::string_view bytes);  ///< false once the server is gone
  /// Reads until `end` has come, the connection ends, or 10 s have passed.
  std::string read_until(const std::string& end);
  std::string read_all() { return read_until(""); }
  void close();
  void reset();         ///< closes so that the server sees an error
  void small_window();  ///< takes few bytes that were not read

 private:
  int fd_;
};

struct Answer {
  int status = 0;
  std::string head, body;  ///< chunks joined
  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(body); }
};
Answer parse_answer(const std::string& bytes);
/// One request on a connection of its own.
Answer fetch(int port, const std::string& method, const std::string& path,
             const std::string& body = "", const std::string& headers = "");
std::string post_text(const std::string& path, const std::string& body,
                      const std::string& headers = "");

/// Allows everything; tests look at the schema that asked for it.
class AnyConstraint final : public TokenConstraint {
 public:
  void allow(std::span<uint32_t> mask) override { std::ranges::fill(mask, ~uint32_t{0}); }
  void accept(int32_t) override {}
  bool may_end() const override { return true; }
};

}  // namespace hocket::serve
