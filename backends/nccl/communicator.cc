#include "tutti/backends/nccl/communicator.h"

#include <chrono>
#include <thread>
#include <utility>

namespace tutti {

// Marks that this thread is inside a call of NCCL. may_call() is false if another thread aborts the
// communicator.
class NcclCommunicator::Inside {
 public:
  explicit Inside(NcclCommunicator& owner) : owner_(owner) {
    owner_.is_inside_.store(true);
    if (!owner_.is_aborting_.load()) return;
    owner_.is_inside_.store(false);
    may_call_ = false;
  }
  ~Inside() { owner_.is_inside_.store(false); }
  bool may_call() const { return may_call_; }

 private:
  NcclCommunicator& owner_;
  bool may_call_ = true;
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, ncclComm_t native)
    : library_(std::move(library)), native_(native) {}

NcclCommunicator::~NcclCommunicator() { abort(); }

NcclCommunicator::State NcclCommunicator::judge(ncclResult_t result) {
  if (result == ncclSuccess) return state_ = State::ready;
  if (result == ncclInProgress) return state_ = State::busy;
  failure_ = library_->describe(result, native_);
  return state_ = State::failed;
}

NcclCommunicator::State NcclCommunicator::call(
    bool grouped, const std::function<ncclResult_t(ncclComm_t)>& calls) {
  if (state_ == State::failed) return state_;
  const Inside inside(*this);
  if (!inside.may_call()) return state_;
  if (!grouped) return judge(calls(native_));
  library_->ncclGroupStart();
  const auto result = calls(native_);
  // The group is ended even after an error. Otherwise the open group would collect all later calls
  // of this thread.
  const auto ended = library_->ncclGroupEnd();
  return judge(result != ncclSuccess && result != ncclInProgress ? result : ended);
}

NcclCommunicator::State NcclCommunicator::begin_split(int color, int key, ncclConfig_t& config) {
  return call(false, [&](ncclComm_t comm) {
    return library_->ncclCommSplit(comm, color, key, &split_, &config);
  });
}

std::shared_ptr<NcclCommunicator> NcclCommunicator::take_split() {
  const Inside inside(*this);
  if (!inside.may_call() || split_ == nullptr) return nullptr;
  return std::make_shared<NcclCommunicator>(library_, std::exchange(split_, nullptr));
}

NcclCommunicator::State NcclCommunicator::state() {
  if (state_ == State::failed) return state_;
  const Inside inside(*this);
  if (!inside.may_call()) return state_;
  ncclResult_t result = ncclSuccess;
  const auto asked = library_->ncclCommGetAsyncError(native_, &result);
  return judge(asked == ncclSuccess ? result : asked);
}

void NcclCommunicator::abort() noexcept {
  if (is_aborting_.exchange(true)) return;
  // Another thread may be inside NCCL. Its call first gets time to return. If it hangs, NCCL can be
  // aborted nevertheless.
  const auto grace = Deadline::after(1);
  while (is_inside_.load() && !grace.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  library_->ncclCommAbort(native_);
  // The abort has also ended a split that was running.
  if (split_ != nullptr) library_->ncclCommAbort(split_);
  has_ended_ = true;
}

void NcclCommunicator::abort_apart(std::shared_ptr<NcclCommunicator> communicator,
                                   std::function<void()> done) {
  std::thread([communicator = std::move(communicator), done = std::move(done)] {
    communicator->abort();
    done();
  }).detach();
}

bool NcclCommunicator::await_end(Deadline deadline) const noexcept {
  while (!has_ended_.load() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  return has_ended_.load();
}

void NcclCommunicator::close(Deadline deadline) noexcept {
  const auto await = [&] {
    while (state_ == State::busy && !is_over() && !deadline.passed() && state() == State::busy)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  await();
  take_split();  // drops a split communicator that nobody took
  if (state_ == State::ready && !is_aborting_.load()) {
    call(false, [this](ncclComm_t comm) { return library_->ncclCommFinalize(comm); });
    await();
  }
  if (state_ != State::ready) abort();
  if (is_aborting_.exchange(true)) {
    await_end(deadline);
    return;
  }
  library_->ncclCommDestroy(native_);
  has_ended_ = true;
}

}  // namespace tutti
