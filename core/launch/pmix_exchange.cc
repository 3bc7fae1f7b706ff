#include <dlfcn.h>
#include <fmt/format.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/core/launch/exchange.h"

namespace tutti {

namespace {

// The part of libpmix.so.2's binary interface that is used here (PMIx standard 3 and 4, chapters
// "Data structures" and "Client interfaces"). It is declared by hand so that neither building nor
// running Tutti needs the library.
struct PmixProcess {
  char space[256];
  uint32_t rank;
};
struct PmixValue {
  uint16_t type;
  union {
    bool flag;
    char* string;
    uint16_t u16;
    uint32_t u32;
    struct {
      char* name;
      char* value;
      char separator;
    } largest;  // the type of value that needs most space
  } data;
};
struct PmixInfo {
  char key[512];
  uint32_t directives;
  PmixValue value;
};
static_assert(sizeof(PmixProcess) == 260 && offsetof(PmixValue, data) == 8 &&
              sizeof(PmixValue) == 32 && offsetof(PmixInfo, value) == 520);

constexpr uint16_t kBool = 1, kString = 3, kUint16 = 13, kUint32 = 14, kRank = 40;
constexpr uint8_t kGlobalScope = 3;
constexpr uint32_t kAnyRank = UINT32_MAX - 1;
constexpr const char* kPmixKey = "tutti-meeting";

// The state of a fence. The fence's callback may still run after the caller has stopped waiting.
struct FenceState {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<int> status;
};

}  // namespace

class PmixClient::Implementation {
 public:
  Implementation() {
    library_ = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr)
      throw Error(ErrorCode::unavailable,
                  fmt::format("the launcher speaks PMIx, but its library cannot be loaded ({}); "
                              "install libpmix2, or set TUTTI_STORE",
                              ::dlerror()));
    load(init_, "PMIx_Init");
    load(finalize_, "PMIx_Finalize");
    load(put_, "PMIx_Put");
    load(commit_, "PMIx_Commit");
    load(fence_, "PMIx_Fence_nb");
    load(get_, "PMIx_Get");
    load(describe_, "PMIx_Error_string");
    check(init_(&self_, nullptr, 0), "reach the launcher's PMIx server");
  }

  ~Implementation() {
    // If a fence has not ended, finalize_() would wait for it.
    if (!fence_pending_) finalize_(nullptr, 0);
    // The library stays loaded, because it leaves thread-specific keys and exit handlers behind.
  }

  int rank() const { return static_cast<int>(self_.rank); }

  int number(const char* key, bool of_job) {
    const auto value = get(of_job ? kAnyRank : self_.rank, key);
    switch (value->type) {
      case kUint16:
        return value->data.u16;
      case kUint32:
      case kRank:
        return static_cast<int>(value->data.u32);
    }
    throw Error(ErrorCode::unavailable,
                fmt::format("the launcher's PMIx server has no number for {}", key));
  }

  std::string share(std::string_view text, Deadline deadline) {
    if (self_.rank == 0) {
      std::string copy(text);
      PmixValue value{};
      value.type = kString;
      value.data.string = copy.data();
      check(put_(kGlobalScope, kPmixKey, &value), "give PMIx the store's address");
    }
    check(commit_(), "give PMIx the store's address");
    fence(deadline);
    const auto value = get(0, kPmixKey);
    if (value->type != kString || value->data.string == nullptr)
      throw Error(ErrorCode::corrupt_data, "PMIx has no text where rank 0 put the store's address");
    std::string shared = value->data.string;
    std::free(value->data.string);
    return shared;
  }

 private:
  template <typename Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_, name));
    if (function == nullptr)
      throw Error(ErrorCode::version, fmt::format("libpmix.so.2 has no {}; set TUTTI_STORE", name));
  }

  void check(int status, const char* doing) const {
    if (status != 0)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("cannot {}: {}; set TUTTI_STORE to do without it", doing, describe_(status)));
  }

  using Value = std::unique_ptr<PmixValue, void (*)(void*)>;

  Value get(uint32_t rank, const char* key) {
    PmixProcess process = self_;
    process.rank = rank;
    PmixValue* value = nullptr;
    check(get_(&process, key, nullptr, 0, &value), "read from the launcher's PMIx server");
    return Value(value, std::free);
  }

  // Waits until all ranks have arrived, and collects the data of all ranks. Uses the nonblocking
  // call, because a rank may never arrive.
  void fence(Deadline deadline) {
    PmixInfo collect{};
    std::strcpy(collect.key, "pmix.collect");
    collect.value.type = kBool;
    collect.value.data.flag = true;
    auto state = std::make_shared<FenceState>();
    auto held = std::make_unique<std::shared_ptr<FenceState>>(state);
    fence_pending_ = true;
    check(fence_(nullptr, 0, &collect, 1, &fence_ended, held.get()), "meet the others by PMIx");
    static_cast<void>(held.release());  // the callback owns it now
    std::unique_lock lock(state->mutex);
    const auto ended = [&] { return state->status.has_value(); };
    if (deadline.is_never())
      state->changed.wait(lock, ended);
    else if (!state->changed.wait_until(lock, deadline.when(), ended))
      throw Error(ErrorCode::timeout,
                  "not all ranks met by the launcher's PMIx server before the deadline: not all "
                  "made a Communicator, or TUTTI_CONNECT_TIMEOUT is too short");
    fence_pending_ = false;
    check(*state->status, "meet the others by PMIx");
  }

  static void fence_ended(int status, void* data) {
    const std::unique_ptr<std::shared_ptr<FenceState>> held(
        static_cast<std::shared_ptr<FenceState>*>(data));
    const std::lock_guard lock((*held)->mutex);
    (*held)->status = status;
    (*held)->changed.notify_all();
  }

  void* library_ = nullptr;
  int (*init_)(PmixProcess*, PmixInfo*, size_t) = nullptr;
  int (*finalize_)(const PmixInfo*, size_t) = nullptr;
  int (*put_)(uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit_)() = nullptr;
  int (*fence_)(const PmixProcess*, size_t, const PmixInfo*, size_t, void (*)(int, void*),
                void*) = nullptr;
  int (*get_)(const PmixProcess*, const char*, const PmixInfo*, size_t, PmixValue**) = nullptr;
  const char* (*describe_)(int) = nullptr;
  PmixProcess self_{};
  bool fence_pending_ = false;
};

PmixClient::PmixClient() : implementation_(std::make_unique<Implementation>()) {}
PmixClient::~PmixClient() = default;
int PmixClient::rank() const { return implementation_->rank(); }
int PmixClient::size() const { return implementation_->number("pmix.job.size", true); }
int PmixClient::local_rank() const { return implementation_->number("pmix.lrank", false); }
int PmixClient::local_size() const { return implementation_->number("pmix.local.size", true); }
std::string PmixClient::share(std::string_view text, Deadline deadline) {
  return implementation_->share(text, deadline);
}

}  // namespace tutti
