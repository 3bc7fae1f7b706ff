// A host is cut off. Its rank is named as silent within the peer timeout, the other ranks continue,
// and the host does no harm when its link comes back.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>
#include <vector>

#include "tests/faults/view.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/wait_until.h"
#include "tutti/backends/plugins.h"
#include "tutti/core/communicator.h"
#if TUTTI_HAS_NCCL
#include "tests/backends/fake_nccl/rank_process.h"
#endif

namespace tutti {
namespace {

using test::NetworkNamespaces;
using test::view;

constexpr double kPeerTimeout = 1.5;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// State that the processes of the test share.
struct Shared {
  std::atomic<double> cut{0};
  std::atomic<int> running{0};
};

Shared& make_shared_memory() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  return *new (memory) Shared;
}

// Returns 0 if all was as promised, otherwise a code for the broken promise.
int survivor(Communicator& comm, const Error& error, const Shared& shared, int cut_rank) {
  const double seconds = now() - shared.cut;
  std::fprintf(stderr, "rank %d after %.2f s: %s\n", comm.rank(), seconds, error.what());
  if (error.code() != ErrorCode::peer_silent || error.rank() != cut_rank) return 11;
  if (seconds > kPeerTimeout + 1.0) return 12;
  const auto rest = comm.shrink(Deadline::after(20));
  std::vector<float> ones(100, 1.0f);
  rest->allreduce("after", view(ones), ReduceOp::sum).wait();
  if (rest->size() != comm.size() - 1 || ones[0] != static_cast<float>(rest->size())) return 13;
  // Long enough for the other side to come back and try again.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  rest->allreduce("still", view(ones), ReduceOp::average).wait();
  return ones[0] == static_cast<float>(rest->size()) ? 0 : 14;
}

int rank_body(int rank, int size, const std::string& store, const std::string& backend,
              Shared& shared, int cut_rank) {
  Options options;
  options.rank = rank;
  options.size = size;
  options.launcher = "explicit";
  options.store = store;
  options.serve_store = true;
  options.secret = "a secret of this test";
  options.backend = backend;
  if (has_device_runtime(DeviceKind::fake)) options.backend_library = TUTTI_FAKE_NCCL;
  options.peer_timeout = kPeerTimeout;
  const auto comm = Communicator::create(options);
  ++shared.running;
  try {
    while (true) {
      std::vector<float> values(50'000, 1.0f);
      comm->allreduce("x", view(values)).wait();
    }
  } catch (const Error& error) {
    if (rank != cut_rank) return survivor(*comm, error, shared, cut_rank);
    std::fprintf(stderr, "rank %d, cut off: %s\n", rank, error.what());
    // Another machine would not see this process end, but this test's ranks share one machine. The
    // process therefore stays until the others have reported silence.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return error.code() == ErrorCode::peer_silent || error.code() == ErrorCode::peer_lost ? 0 : 15;
  }
}

#if TUTTI_HAS_NCCL
// Runs rank_body() on the fake device and the fake NCCL. The fake's data ignores network
// namespaces, so it hangs by itself for the host that is cut off.
int rank_body_on_fakes(int rank, int size, const std::string& store, const std::string& backend,
                       Shared& shared, int cut_rank, const std::string& folder) {
  const test::FakeNcclRank fakes(folder);
  int code = 0;
  {
    const std::jthread cable([&](const std::stop_token& is_over) {
      while (shared.cut == 0 && !is_over.stop_requested())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank == cut_rank) test::FakeNccl::hang(rank);
    });
    code = rank_body(rank, size, store, backend, shared, cut_rank);
  }
  for (const auto& complaint : test::FakeNcclRank::last_complaints()) {
    std::fprintf(stderr, "rank %d: fake NCCL: %s\n", rank, complaint.c_str());
    code = 16;
  }
  const bool went_over_nccl = test::FakeNccl::completed() > 0 && test::FakeNccl::aborts() > 0;
  return code == 0 && !went_over_nccl ? 17 : code;
}
#endif

constexpr int kPort = 29517;

// The host of each rank. Two ranks share a host, and the last one is alone on its host. Two levels
// with NCCL need the same number of ranks on each host.
std::vector<int> layout_of(const std::string& backend) {
  return backend.starts_with("nccl+") ? std::vector{0, 1, 2} : std::vector{0, 0, 1, 2};
}

struct Folder {
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path = fmt::format("{}cut_link_{}", testing::TempDir(), ::getpid());
};

void cut_and_restore(const std::string& backend) {
  auto& shared = make_shared_memory();
  const auto layout = layout_of(backend);
  const int ranks = static_cast<int>(layout.size()), cut_rank = ranks - 1;
  NetworkNamespaces hosts(layout.back() + 1);
  const auto store = fmt::format("tcp://{}:{}", hosts.address(0), kPort);
  const Folder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank)
    children.push_back(hosts.start(layout[static_cast<size_t>(rank)], [&, rank] {
#if TUTTI_HAS_NCCL
      if (backend.starts_with("nccl"))
        return rank_body_on_fakes(rank, ranks, store, backend, shared, cut_rank, folder.path);
#endif
      return rank_body(rank, ranks, store, backend, shared, cut_rank);
    }));
  ASSERT_TRUE(test::wait_until([&] { return shared.running >= ranks; }, 20));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  shared.cut = now();
  hosts.cut(layout.back());
  std::this_thread::sleep_for(std::chrono::seconds(3));
  hosts.restore(layout.back());
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child, 30), 0);
}

class CutLink : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, CutLink,
                         testing::Values("tcp", "gloo", "ucx", "nccl", "shm+tcp", "shm+ucx",
                                         "nccl+tcp"),
                         [](const auto& info) {
                           auto name = info.param;
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name;
                         });

// Runs FAULT_RUNS times, by default twice.
TEST_P(CutLink, TheRankBehindItIsSilentAndTheOthersGoOn) {
  const auto why = NetworkNamespaces::unavailable();
  if (!why.empty()) GTEST_SKIP() << why;
  try {
    load_backends(GetParam(), {}, {});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const char* text = std::getenv("FAULT_RUNS");
  const int runs = text != nullptr ? std::max(1, std::atoi(text)) : 2;
  for (int run = 0; run < runs && !HasFailure(); ++run) {
    SCOPED_TRACE(fmt::format("run {} of {}", run + 1, runs));
    cut_and_restore(GetParam());
  }
}

}  // namespace
}  // namespace tutti
