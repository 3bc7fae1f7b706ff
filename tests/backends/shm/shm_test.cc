#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/world.h"
#include "tutti/backends/handshake/handshake.h"
#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shm/rendezvous.h"
#include "tutti/backends/shm/shm_memory.h"
#include "tutti/backends/shm/unix_socket.h"
#include "tutti/base/error.h"
#include "tutti/base/little_endian.h"

// Shared memory between processes: how ranks meet, who is kept out, and what is left of the dead.

namespace tutti::test {
namespace {

/// A folder for a file store that outlives no test.
class StoreFolder {
 public:
  StoreFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-shm-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~StoreFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A rank in a process of its own. It ends with the code that `body` returns.
class RankProcess {
 public:
  explicit RankProcess(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(50);
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank process: %s\n", error.what());
    }
    ::_exit(code);
  }
  ~RankProcess() {
    kill(SIGKILL);
    wait();
  }
  RankProcess(const RankProcess&) = delete;
  pid_t pid() const { return pid_; }
  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  /// The exit code, or minus the signal.
  int wait() {
    if (pid_ <= 0) return 0;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

class Shm : public testing::Test {
 protected:
  Context context(int rank, int size, double seconds = 20) {
    auto context = thread_context(rank, size, make_file_store(folder_.path()));
    context.deadline = Deadline::after(seconds);
    return context;
  }
  std::unique_ptr<Transport> connect(int rank, int size, double seconds = 20) {
    const auto told = context(rank, size, seconds);
    return make_stream_transport(rank, find_backend("shm").open(told, others(rank, size)));
  }
  static bool rest(Transport& transport, Deadline deadline) {
    if (transport.progress() || !transport.arm()) return true;
    Poller poller;
    poller.watch(transport.descriptor(), EPOLLIN);
    return poller.wait(deadline.poll_milliseconds());
  }
  static std::optional<PeerEvent> wait_event(Transport& transport, double seconds = 20) {
    const auto deadline = Deadline::after(seconds);
    while (!deadline.passed()) {
      if (auto event = transport.take_event()) return event;
      rest(transport, deadline);
    }
    return {};
  }
  static TransferState finish(Transport& transport, Ticket ticket) {
    const auto deadline = Deadline::after(20);
    auto state = transport.test(ticket);
    while (state == TransferState::pending && !deadline.passed()) {
      rest(transport, deadline);
      state = transport.test(ticket);
    }
    return state;
  }
  Error error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::internal, ""};
  }

  StoreFolder folder_;
};

std::vector<std::byte> expected_of(int rank) {
  return pattern(300'000, static_cast<uint64_t>(rank));
}

TEST_F(Shm, ProcessesExchangeData) {
  constexpr int kSize = 4;
  const auto body = [&](int rank) {
    auto transport = connect(rank, kSize);
    const auto data = expected_of(rank);
    std::vector<std::vector<std::byte>> received(kSize, std::vector<std::byte>(data.size()));
    std::vector<Ticket> tickets;
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == rank) continue;
      tickets.push_back(transport->irecv(peer, 1, 0, received[static_cast<size_t>(peer)]));
      tickets.push_back(transport->isend(peer, {1, 0, 0}, data));
    }
    for (const Ticket ticket : tickets)
      if (finish(*transport, ticket) != TransferState::done) return 1;
    for (int peer = 0; peer < kSize; ++peer)
      if (peer != rank && received[static_cast<size_t>(peer)] != expected_of(peer)) return 2;
    transport->goodbye(10);
    return 0;
  };
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 1; rank < kSize; ++rank)
    ranks.push_back(std::make_unique<RankProcess>([&, rank] { return body(rank); }));
  EXPECT_EQ(body(0), 0);
  for (auto& rank : ranks) EXPECT_EQ(rank->wait(), 0);
}

TEST_F(Shm, AKilledRankIsLostWithinASecond) {
  for (const bool has_child : {false, true})
    for (const bool busy : {false, true}) {
      const StoreFolder folder;
      const auto told = [&](int rank) {
        auto context = thread_context(rank, 2, make_file_store(folder.path()));
        return context;
      };
      int pipe_ends[2];
      ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
      const Descriptor pipe_read(pipe_ends[0]);
      Descriptor pipe_write(pipe_ends[1]);
      RankProcess other([&] {
        auto transport = make_stream_transport(1, find_backend("shm").open(told(1), others(1, 2)));
        // A child that it forked holds its sockets open; the rank is dead all the same.
        pid_t child = has_child ? ::fork() : -1;
        if (child == 0) {
          ::sleep(30);
          ::_exit(0);
        }
        [[maybe_unused]] const auto written = ::write(pipe_write.get(), &child, sizeof child);
        std::vector<std::byte> memory(50 << 20);
        const Ticket ticket = transport->irecv(0, 1, 0, memory);
        finish(*transport, ticket);
        return 0;
      });
      auto transport = make_stream_transport(0, find_backend("shm").open(told(0), others(0, 2)));
      pid_t child = -1;
      ASSERT_EQ(::read(pipe_read.get(), &child, sizeof child), ssize_t{sizeof child});
      const auto data = pattern(50 << 20, 1);
      const Ticket ticket = busy ? transport->isend(1, {1, 0, 0}, data) : 0;
      for (int i = 0; i < 20; ++i) transport->progress();
      const auto before = Clock::now();
      other.kill(SIGKILL);
      const auto event = wait_event(*transport);
      const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
      if (child > 0) ::kill(child, SIGKILL);
      ASSERT_TRUE(event);
      EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
      EXPECT_EQ(event->peer, 1);
      EXPECT_LT(seconds, 1);
      if (busy) {
        EXPECT_EQ(transport->test(ticket), TransferState::failed);
      }
    }
}

TEST_F(Shm, TheLastWordsOfAProcessArrive) {
  const auto data = pattern(10'000, 5);
  RankProcess other([&] {
    auto transport = connect(1, 2);
    const Ticket ticket = transport->isend(0, {7, 0, 0}, data);
    transport->progress();
    return transport->test(ticket) == TransferState::done ? 0 : 1;
    // No goodbye: it just ends.
  });
  auto transport = connect(0, 2);
  EXPECT_EQ(other.wait(), 0);
  std::vector<std::byte> memory(data.size());
  const Ticket ticket = transport->irecv(1, 7, 0, memory);
  EXPECT_EQ(finish(*transport, ticket), TransferState::done);
  EXPECT_TRUE(memory == data);
  const auto event = wait_event(*transport);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

int mappings_of_rings() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  int count = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps))
    if (std::string_view(line).find("memfd:tutti") != std::string_view::npos) ++count;
  std::fclose(maps);
  return count;
}

TEST_F(Shm, NothingIsLeft) {
  const int before = open_descriptors();
  {
    auto ends = make_transports(find_backend("shm"), 4);
    EXPECT_EQ(mappings_of_rings(), 12);
    EXPECT_GT(open_descriptors(), before);
  }
  EXPECT_EQ(mappings_of_rings(), 0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Shm, NamesTheMissingRanks) {
  // Ranks 0 and 2 of 4 are there.
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2})
    threads.emplace_back([&, rank] {
      const auto before = Clock::now();
      const auto error = error_of([&] { connect(rank, 4, 0.4); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(error.rank(), 1);
      EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
      texts[static_cast<size_t>(rank / 2)] = error.what();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_NE(texts[0].find("rank 0 waited for ranks 1 3 "), std::string::npos) << texts[0];
  EXPECT_NE(texts[1].find("rank 2 waited for ranks 1 3 "), std::string::npos) << texts[1];
}

// The name of a rank's socket, as the store tells it.
std::string socket_name(Store& store, int rank) {
  const auto text = store.get("shm/address/" + std::to_string(rank), Deadline::after(20));
  return text.substr(0, text.find(' '));
}

TEST_F(Shm, StrangersAreTurnedAway) {
  const auto store = make_file_store(folder_.path());
  std::unique_ptr<Transport> zero;
  std::thread rank_0([&] { zero = connect(0, 2); });
  const auto name = socket_name(*store, 0);
  std::vector<Descriptor> strangers;
  for (size_t i = 0; i < 80; ++i) {
    bool busy = false;
    auto socket = connect_unix(name, busy);
    ASSERT_TRUE(socket);
    // Silent ones, garbage, and what begins like a rank but does not know the token.
    if (i % 4 == 1) send_unix(socket.get(), pattern(100, i));
    if (i % 4 == 2) {
      auto almost = pattern(60, i);
      std::memcpy(almost.data(), "tuttishm", 8);
      const int descriptors[] = {0, 1, 2};
      send_unix(socket.get(), almost, descriptors);
    }
    if (i % 4 == 3) ::shutdown(socket.get(), SHUT_RDWR);
    if (i % 4 == 0 || i % 8 == 1) strangers.push_back(std::move(socket));
  }
  auto one = connect(1, 2);
  rank_0.join();
  ASSERT_TRUE(zero);
  const auto data = pattern(100, 1);
  std::vector<std::byte> memory(100);
  const Ticket send = one->isend(0, {1, 0, 0}, data);
  const Ticket recv = zero->irecv(1, 1, 0, memory);
  one->progress();
  EXPECT_EQ(finish(*zero, recv), TransferState::done);
  EXPECT_EQ(finish(*one, send), TransferState::done);
  EXPECT_TRUE(memory == data);
}

// A peer that knows the token, but one of whose doorbells could block the rank that rings it.
TEST_F(Shm, ADoorbellThatMayBlockIsRefused) {
  constexpr size_t kRingBytes = 64 << 10;
  const auto store = make_file_store(folder_.path());
  for (const size_t wrong : {1, 2}) {
    std::optional<Error> refused;
    std::thread rank_0([&] {
      try {
        const int peers[] = {1};
        connect_through_memory(context(0, 2), peers);
      } catch (const Error& error) {
        refused = error;
      }
    });
    const auto address = store->get("shm/address/0", Deadline::after(20));
    store->erase("shm/address/0");
    const auto space = address.find(' ');
    bool busy = false;
    const auto socket = connect_unix(address.substr(0, space), busy);
    std::string hello = "tuttishm";
    append_number(hello, kWireVersion);
    append_number(hello, 1);
    append_number(hello, 0);
    append_number(hello, uint64_t{kRingBytes});
    hello += address.substr(space + 1);
    int pipe_ends[2];
    EXPECT_EQ(::pipe(pipe_ends), 0);
    const Descriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
    const auto rings = SharedRings::create(kRingBytes);
    const Bell bells[2];
    int descriptors[] = {rings.descriptor(), bells[0].descriptor(), bells[1].descriptor()};
    descriptors[wrong] = writer.get();
    EXPECT_TRUE(send_unix(socket.get(), std::as_bytes(std::span(hello)), descriptors));
    rank_0.join();
    ASSERT_TRUE(refused);
    EXPECT_STREQ(refused->what(), "rank 1 sent no rings and doorbells to rank 0");
    store->erase("shm/failure");
  }
}

// The door of rank 0 is crowded: it closes the connection before the caller could say who it is.
TEST_F(Shm, ACallerThatIsDismissedCallsAgain) {
  const auto store = make_file_store(folder_.path());
  const auto name = "tutti-test-" + std::to_string(::getpid());
  const auto door = listen_unix(name);
  std::unique_ptr<Transport> one;
  std::thread rank_1([&] { one = connect(1, 2); });
  store->set("shm/address/0", name + " " + std::string(32, 't'));
  Descriptor call;
  for (int calls = 0; calls < 4; ++calls) {
    call.reset();
    const auto deadline = Deadline::after(10);
    while (!call && !deadline.passed()) {
      call = accept_unix(door.get());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(call) << "call " << calls;
  }
  const std::string word = "welcome!";
  EXPECT_TRUE(send_unix(call.get(), std::as_bytes(std::span(word))));
  rank_1.join();
  EXPECT_TRUE(one);
}

TEST_F(Shm, RanksOfAnotherUserAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const int foreign : {0, 1}) {
    TcpStoreServer server("127.0.0.1", 0, "secret");
    const auto open = [&](int rank) {
      auto store = connect_tcp_store("127.0.0.1", server.port(), "secret", Deadline::after(10));
      find_backend("shm").open(thread_context(rank, 2, store), others(rank, 2));
    };
    RankProcess other([&] {
      if (::setresuid(12345, 12345, 12345) != 0) return 98;
      return error_of([&] { open(foreign); }).code() == ErrorCode::authentication ? 7 : 8;
    });
    const auto error = error_of([&] { open(1 - foreign); });
    EXPECT_EQ(error.code(), ErrorCode::authentication) << error.what();
    EXPECT_EQ(error.rank(), foreign);
    EXPECT_NE(std::string(error.what()).find("; ranks that share memory must belong to one user"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("12345"), std::string::npos) << error.what();
    EXPECT_EQ(other.wait(), 7);
  }
}

TEST_F(Shm, AnotherNetworkNamespaceIsAnotherHost) {
  int status_pipe[2];
  ASSERT_EQ(::pipe2(status_pipe, O_CLOEXEC), 0);
  const Descriptor status_read(status_pipe[0]), status_write(status_pipe[1]);
  RankProcess other([&] {
    const char allowed = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (::write(status_write.get(), &allowed, 1) != 1 || allowed == 'n') return 0;
    try {
      connect(1, 2);
    } catch (const Error& error) {
      const bool is_right =
          error.code() == ErrorCode::unavailable && error.rank() == 0 &&
          std::string(error.what()).find("network namespace") != std::string::npos;
      return is_right ? 7 : 8;
    }
    return 9;
  });
  char allowed = 'n';
  ASSERT_EQ(::read(status_read.get(), &allowed, 1), 1);
  if (allowed == 'n') GTEST_SKIP() << "cannot make a network namespace";
  // The other side does not wait for its deadline either.
  const auto before = Clock::now();
  const auto error = error_of([&] { connect(0, 2); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(other.wait(), 7);
}

TEST_F(Shm, APeerThatWritesNonsenseIntoTheRingIsLost) {
  std::map<int, std::unique_ptr<ShmEnds>> mine;
  std::unique_ptr<Transport> transport;
  std::thread other([&] { transport = connect(1, 2); });
  const auto told = context(0, 2);
  const int peers[] = {1};
  mine = connect_through_memory(told, peers);
  other.join();
  auto& ends = *mine.at(1);
  ends.rings.control(ends.side).head.store(uint64_t{1} << 50);
  ends.peer.ring();
  const auto event = wait_event(*transport);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
  EXPECT_NE(event->detail.find("impossible position"), std::string::npos) << event->detail;
}

/// Two ranks' memories in this process, and their files.
struct TwoMemories {
  std::vector<std::unique_ptr<SharedMemory>> of = std::vector<std::unique_ptr<SharedMemory>>(2);
  std::vector<Descriptor> files = std::vector<Descriptor>(2);
};

TwoMemories connect_memories(const std::function<Context(int)>& context) {
  TwoMemories memories;
  run_ranks(2, [&](int rank) {
    const auto own = static_cast<size_t>(rank);
    auto file = SharedFile::create(shared_block_bytes());
    memories.files[own] = Descriptor(::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0));
    auto ends = connect_through_memory(context(rank), others(rank, 2), file.descriptor());
    std::vector<const std::unique_ptr<ShmEnds>*> by_rank(2, nullptr);
    for (auto& [peer, end] : ends) by_rank[static_cast<size_t>(peer)] = &end;
    memories.of[own] = make_shm_memory(rank, 2, std::move(file), by_rank);
  });
  return memories;
}

TEST_F(Shm, APlaceOutsideOfThePeersMemoryIsRefused) {
  const auto memories = connect_memories([&](int rank) { return context(rank, 2); });
  auto& zero = *memories.of[0];
  auto& one = *memories.of[1];
  const auto region = one.allocate(10'000);
  std::memset(region->data(), 7, region->bytes());
  const uint64_t place = one.place_of(region->data(), region->bytes());
  ASSERT_NE(place, SharedMemory::kNowhere);
  EXPECT_EQ(zero.at(1, place, region->bytes())[region->bytes() - 1], std::byte{7});
  struct stat status {};
  ASSERT_EQ(::fstat(memories.files[1].get(), &status), 0);
  const auto end = static_cast<uint64_t>(status.st_size);
  const std::vector<std::pair<uint64_t, size_t>> forged = {
      {end, 1},
      {end - 1, 2},
      {0, end + 1},
      {uint64_t{1} << 60, 64},
      // Sums that wrap to something small.
      {SharedMemory::kNowhere, 1},
      {SharedMemory::kNowhere - 63, 64},
      {SharedMemory::kNowhere - 10, 100},
      {64, SIZE_MAX - 8},
      {SharedMemory::kNowhere, SIZE_MAX},
  };
  for (const auto& [at, bytes] : forged) {
    const auto error = error_of([&] { zero.at(1, at, bytes); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << at << " " << bytes;
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(std::string(error.what())
                  .find("rank 1 named " + std::to_string(bytes) + " bytes at " +
                        std::to_string(at) + " of its shared memory, which has "),
              0u)
        << error.what();
  }
  EXPECT_NO_THROW(zero.at(1, end - 1, 1));
}

// Touching memory for which there is no page any more, where the host has none left, is a SIGBUS.
TEST_F(Shm, MemoryThatIsUsedAgainIsAllocatedAgain) {
  const auto memories = connect_memories([&](int rank) { return context(rank, 2); });
  constexpr size_t kBytes = 1 << 20;
  const auto allocated = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(memories.files[0].get(), &status), 0);
    EXPECT_GE(status.st_size, status.st_blocks * 512);
    return status.st_blocks * 512;
  };
  auto region = memories.of[0]->allocate(kBytes);
  const auto before = allocated();
  const auto place = memories.of[0]->place_of(region->data(), kBytes);
  region->data()[0] = std::byte{1};
  region.reset();
  EXPECT_EQ(allocated(), before - static_cast<int64_t>(kBytes));
  region = memories.of[0]->allocate(kBytes);
  EXPECT_EQ(memories.of[0]->place_of(region->data(), kBytes), place);
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(region->data()[0], std::byte{0});
}

TEST_F(Shm, MemoryBackendRefusesOtherProcesses) {
  const auto told = context(1, 2, 10);
  RankProcess other([&] {
    try {
      find_backend("memory").open(context(0, 2, 0.5), others(0, 2));
    } catch (const Error& error) {
      return error.code() == ErrorCode::timeout ? 7 : 8;
    }
    return 9;
  });
  auto alone = thread_context(0, 3, make_memory_store());
  alone.deadline = Deadline::after(0.3);
  const auto in_vain = error_of([&] { find_backend("memory").open(alone, others(0, 3)); });
  EXPECT_EQ(in_vain.code(), ErrorCode::timeout);
  EXPECT_STREQ(in_vain.what(),
               "rank 0 waited for ranks 1 2 to connect through memory, in vain; did it die?");
  const auto error = error_of([&] { find_backend("memory").open(told, others(1, 2)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_NE(std::string(error.what()).find("use shm or tcp"), std::string::npos) << error.what();
  EXPECT_EQ(other.wait(), 7);
}

}  // namespace
}  // namespace tutti::test
