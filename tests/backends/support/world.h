#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tutti/backends/backend.h"
#include "tutti/core/settings/option_table.h"

namespace tutti::test {

/// Runs body(rank) in one thread per rank; rethrows the exception of the lowest rank.
inline void run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The Context of a rank that is a thread of this process.
inline Context thread_context(int rank, int size, std::shared_ptr<Store> store) {
  Context context;
  context.rank = rank;
  context.size = size;
  context.store = std::move(store);
  for (int i = 0; i < size; ++i)
    context.places.push_back({"here", "localhost", static_cast<int>(::getpid()), i});
  context.secret = "a secret";
  context.deadline = Deadline::after(20);
  context.settings = backend_settings({});
  context.plugins = builtin_backends();
  return context;
}

inline std::vector<int> others(int rank, int size) {
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) peers.push_back(peer);
  return peers;
}

/// The transports of all ranks, over the channels of one backend.
inline std::vector<std::unique_ptr<Transport>> make_transports(const BackendPlugin& plugin,
                                                               int size) {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Transport>> transports(static_cast<size_t>(size));
  run_ranks(size, [&](int rank) {
    const auto context = thread_context(rank, size, store);
    transports[static_cast<size_t>(rank)] =
        make_stream_transport(rank, plugin.open(context, others(rank, size)));
  });
  return transports;
}

inline std::vector<std::unique_ptr<Backend>> make_backends(
    const BackendPlugin& plugin, int size, const std::function<void(Context&)>& change = {}) {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Backend>> backends(static_cast<size_t>(size));
  run_ranks(size, [&](int rank) {
    auto context = thread_context(rank, size, store);
    if (change) change(context);
    backends[static_cast<size_t>(rank)] = plugin.connect(context);
  });
  return backends;
}

/// What each rank hears, soon, where connecting the backend is refused.
inline std::vector<std::string> connect_refusals(const BackendPlugin& plugin, int size,
                                                 ErrorCode code,
                                                 const std::function<void(Context&)>& change) {
  const auto begin = Clock::now();
  const auto store = make_memory_store();
  std::vector<std::string> heard(static_cast<size_t>(size));
  run_ranks(size, [&](int rank) {
    auto context = thread_context(rank, size, store);
    change(context);
    heard[static_cast<size_t>(rank)] = refusal([&] { plugin.connect(context); }, code);
  });
  EXPECT_LT(seconds_since(begin), 10);
  return heard;
}

}  // namespace tutti::test
