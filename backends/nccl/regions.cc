#include "tutti/backends/nccl/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti {

class NcclRegions::Memory final : public Region {
 public:
  Memory(NcclRegions& owner, void* data, size_t bytes, bool is_nccls)
      : owner_(owner), data_(static_cast<std::byte*>(data)), bytes_(bytes), is_nccls_(is_nccls) {}
  ~Memory() override {
    if (is_nccls_)
      owner_.forget(*this);
    else
      owner_.runtime_.free(data_, owner_.device_);
  }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

  bool is_registered(const NcclCommunicator& communicator) const {
    return std::any_of(handles.begin(), handles.end(),
                       [&](const auto& one) { return one.first.get() == &communicator; });
  }
  std::vector<std::pair<std::shared_ptr<NcclCommunicator>, void*>> handles;

 private:
  NcclRegions& owner_;
  std::byte* const data_;
  const size_t bytes_;
  const bool is_nccls_;
};

NcclRegions::NcclRegions(std::shared_ptr<const NcclLibrary> library, DeviceRuntime& runtime,
                         Device device)
    : library_(std::move(library)), runtime_(runtime), device_(device) {}

NcclRegions::~NcclRegions() {
  for (void* memory : late_) library_->ncclMemFree(memory);
}

bool NcclRegions::is_safe() const {
  return library_->version >= NcclLibrary::kRegisters && library_->ncclMemAlloc != nullptr &&
         library_->ncclMemFree != nullptr && library_->ncclCommRegister != nullptr &&
         library_->ncclCommDeregister != nullptr;
}

std::unique_ptr<Region> NcclRegions::allocate(size_t bytes) {
  if (bytes < kLeastBytes || !is_safe())
    return std::make_unique<Memory>(*this, runtime_.allocate(bytes, device_), bytes, false);
  void* data = nullptr;
  runtime_.make_current(device_);
  if (const auto result = library_->ncclMemAlloc(&data, bytes); result != ncclSuccess)
    throw Error(ErrorCode::out_of_memory,
                fmt::format("NCCL cannot allocate {} bytes on {} ({})", bytes, to_string(device_),
                            library_->describe(result)));
  auto memory = std::make_unique<Memory>(*this, data, bytes, true);
  regions_.push_back(memory.get());
  return memory;
}

void NcclRegions::register_for(const std::shared_ptr<NcclCommunicator>& communicator,
                               const std::byte* data) {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Memory* memory) {
    return data >= memory->data() && data < memory->data() + memory->bytes();
  });
  if (found == regions_.end() || (*found)->is_registered(*communicator)) return;
  auto& memory = **found;
  void* handle = nullptr;
  communicator->call(false, [&](ncclComm_t comm) {
    return library_->ncclCommRegister(comm, memory.data(), memory.bytes(), &handle);
  });
  if (handle != nullptr) memory.handles.emplace_back(communicator, handle);
}

// Frees memory that came from NCCL. It must first be deregistered from every communicator. If a
// communicator cannot be called now, the destructor frees the memory instead.
void NcclRegions::forget(Memory& memory) {
  std::erase(regions_, &memory);
  bool is_known = false;
  for (const auto& [communicator, handle] : memory.handles) {
    if (communicator->is_over()) continue;
    if (communicator->state() != NcclCommunicator::State::ready) {
      is_known = true;
      continue;
    }
    communicator->call(false, [&, handle = handle](ncclComm_t comm) {
      return library_->ncclCommDeregister(comm, handle);
    });
  }
  if (is_known)
    late_.push_back(memory.data());
  else
    library_->ncclMemFree(memory.data());
}

}  // namespace tutti
