#include "tests/explore/run/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

// tutti_explore_switch(void** from, void* to): pushes the registers that a call must preserve,
// stores the stack pointer in *from, and continues on the stack `to`.
#if defined(__x86_64__)
asm(R"(
  .text
  .type tutti_explore_switch, @function
tutti_explore_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size tutti_explore_switch, . - tutti_explore_switch
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .type tutti_explore_switch, %function
tutti_explore_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size tutti_explore_switch, . - tutti_explore_switch
)");
#else
#error "a fiber needs the registers of this processor"
#endif

extern "C" void tutti_explore_switch(void** from, void* to);

namespace tutti::explore {

namespace {
constexpr size_t kGuard = 4096 * 16, kStack = 1 << 18;
}  // namespace

Fiber::~Fiber() {
  if (memory_ != nullptr) ::munmap(memory_, kGuard + kStack);
}

void Fiber::begin(void (*entry)()) {
  if (memory_ == nullptr) {
    void* memory = ::mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    ::mprotect(memory_, kGuard, PROT_NONE);
  }
  // The bytes that the switch pops from the stack, and the offset of its return address, which
  // becomes `entry`.
#if defined(__x86_64__)
  constexpr size_t kFrame = 64, kReturn = 48;
#else
  constexpr size_t kFrame = 160, kReturn = 88;
#endif
  std::byte* frame = memory_ + kGuard + kStack - kFrame;
  std::memset(frame, 0, kFrame);
  std::memcpy(frame + kReturn, &entry, sizeof entry);
  stack_ = frame;
  exceptions_ = {};
}

void Fiber::switch_to(Fiber& to) {
  void* globals = abi::__cxa_get_globals();
  std::memcpy(&exceptions_, globals, sizeof exceptions_);
  std::memcpy(globals, &to.exceptions_, sizeof exceptions_);
  tutti_explore_switch(&stack_, to.stack_);
}

}  // namespace tutti::explore
