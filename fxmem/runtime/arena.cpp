// A CPU allocator that serves the requests of a planned step from one arena.
//
// PyTorch asks its CPU allocator for every storage, an operator's own workspace included. While a
// planned step runs on a thread, the k-th request on that thread gets the offset that was chosen
// for it; every other request, and any that does not fit the plan, goes to the allocator that was
// there before. A block never overlaps a live one, whatever the caller keeps alive.
//
// Memory of an arena counts as allocated, in the profiler too, from the first block that touches
// a segment of it. Segments that no live block touches are given back when asked, and by an arena
// with a limit when other allocations would otherwise pass that limit between its steps.

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

// A request that comes late or not at all makes the plan skip at most so many others.
constexpr int64_t kLookahead = 16;

// From here the kernel can map memory 2 MiB at a time, with a 512th of the page faults.
constexpr int64_t kHugePage = int64_t{1} << 21;

struct Plan {
  std::vector<int64_t> bytes, offset;  // of each request; offset -1: not from the arena
};

struct Arena {
  void* region = MAP_FAILED;
  char* base = nullptr;
  int64_t size = 0, reserved = 0, segment = 0;
  int64_t room = -1;   // bytes that others may add after a step before memory is given back
  int64_t given = 0;   // bytes given back since then
  int64_t before = 0;  // bytes of the ordinary allocator at that time
  bool poisons = false, busy = false, deleted = false;
  Plan plan[2];                     // forward, backward
  std::vector<int64_t> users;       // of each segment: live blocks that touch it
  std::vector<char> committed;      // of each segment: counted as allocated
  std::map<int64_t, int64_t> live;  // offset -> end
  std::mutex mutex;                 // for all of the above

  bool reserve(int64_t bytes) {
    size = bytes;
    reserved = bytes + kHugePage;
    region = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return false;
    const auto address = reinterpret_cast<uintptr_t>(region);
    base = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(base, size, MADV_HUGEPAGE);
    return true;
  }

  ~Arena() {
    if (region == MAP_FAILED) return;
    give_back(size);
    munmap(region, reserved);
  }

  bool holds(const void* address) const { return address >= base && address < base + size; }
  int64_t bytes_of(int64_t s) const { return std::min(segment, size - s * segment); }

  // Give back at least so many bytes of what no live block touches, if there are.
  int64_t give_back(int64_t bytes) {
    int64_t done = 0;
    for (auto s = static_cast<int64_t>(committed.size()) - 1; s >= 0 && done < bytes; s--) {
      if (!committed[s] || users[s] > 0) continue;
      committed[s] = 0;
      madvise(base + s * segment, bytes_of(s), MADV_DONTNEED);
      c10::profiledCPUMemoryReporter().Delete(base + s * segment);
      done += bytes_of(s);
    }
    return done;
  }

  bool overlaps(int64_t offset, int64_t end) const {
    auto next = live.lower_bound(offset);
    if (next != live.end() && next->first < end) return true;
    return next != live.begin() && std::prev(next)->second > offset;
  }

  bool place(int64_t offset, int64_t end) {
    std::lock_guard<std::mutex> guard(mutex);
    if (overlaps(offset, end)) return false;
    live.emplace(offset, end);
    for (int64_t s = offset / segment; s * segment < end; s++) {
      users[s]++;
      if (committed[s]) continue;
      committed[s] = 1;
      c10::profiledCPUMemoryReporter().New(base + s * segment, bytes_of(s));
    }
    return true;
  }

  void free(int64_t offset) {
    const int64_t end = live.at(offset);
    if (poisons) memset(base + offset, 0xFF, end - offset);
    live.erase(offset);
    for (int64_t s = offset / segment; s * segment < end; s++) users[s]--;
  }
};

using Shared = std::shared_ptr<Arena>;

// Never destroyed: storages are freed until the very end of the process.
std::mutex& registry_mutex = *new std::mutex;
std::vector<Shared>& registry = *new std::vector<Shared>;

std::atomic<uintptr_t> lowest{UINTPTR_MAX}, highest{0};  // no arena lies outside
std::atomic<int> limited{0};                             // arenas with a limit
std::atomic<int64_t> others{0};  // bytes of live blocks that the ordinary allocator made for us

void unregister(const Arena* arena) {
  registry.erase(std::remove_if(registry.begin(), registry.end(),
                                [&](const Shared& a) { return a.get() == arena; }),
                 registry.end());
}

Shared find(const void* handle) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (auto& arena : registry)
    if (arena.get() == handle) return arena;
  return nullptr;
}

// Free the arena's block at an address; false where there is none.
bool free_block(void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address < lowest.load() || address >= highest.load()) return false;
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (auto& shared : registry) {
    if (!shared->holds(data)) continue;
    const Shared arena = shared;
    std::lock_guard<std::mutex> inner(arena->mutex);
    arena->free(static_cast<char*>(data) - arena->base);
    if (arena->deleted && arena->live.empty()) unregister(arena.get());
    return true;
  }
  return false;
}

// Others ask for memory between the steps of arenas with a limit.
void make_room(int64_t bytes) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (auto& arena : registry) {
    std::lock_guard<std::mutex> inner(arena->mutex);
    if (arena->room < 0 || arena->busy) continue;
    const int64_t added = others.load() + bytes - arena->before;
    const int64_t excess = added - arena->room - arena->given;
    if (excess > 0) arena->given += arena->give_back(excess);
  }
}

struct Event {
  int64_t block, bytes, mark;  // bytes below zero: freed
};

std::mutex& recording_mutex = *new std::mutex;
std::vector<Event>& events = *new std::vector<Event>;
// Address -> block, bytes.
auto& recorded = *new std::unordered_map<void*, std::pair<int64_t, int64_t>>;
int64_t blocks = 0;
std::atomic<bool> recording{false};
thread_local int64_t mark = -1;  // operator that runs on this thread; -1: do not record

struct Run {
  Shared arena;
  const Plan* plan;
  int64_t next = 0, served = 0, refused = 0;
};

thread_local std::vector<Run> runs;  // the innermost step of this thread is the last

c10::Allocator* before = nullptr;

// Context and data are one address, as `raw_allocate` requires.
void release(void* data) {
  if (free_block(data)) return;
  if (recording.load()) {
    std::lock_guard<std::mutex> guard(recording_mutex);
    auto found = recorded.find(data);
    if (found != recorded.end()) {
      events.push_back({found->second.first, -found->second.second, mark});
      recorded.erase(found);
    }
  }
  others -= malloc_usable_size(data);
  before->raw_deleter()(data);
}

c10::DataPtr owned(void* data) {
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

class PlannedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return before->allocate(n);
    if (runs.empty()) {
      if (limited.load(std::memory_order_relaxed) > 0) make_room(n);
    } else if (void* data = planned(runs.back(), n)) {
      return owned(data);
    }
    auto made = before->allocate(n);
    if (made.get() != made.get_context()) return made;
    others += malloc_usable_size(made.get());
    if (mark >= 0 && recording.load()) {
      std::lock_guard<std::mutex> guard(recording_mutex);
      const auto bytes = static_cast<int64_t>(n);
      events.push_back({blocks, bytes, mark});
      recorded[made.get()] = {blocks++, bytes};
    }
    return owned(made.release_context());
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void* planned(Run& run, int64_t n) {
    const auto& bytes = run.plan->bytes;
    const int64_t last = std::min<int64_t>(bytes.size(), run.next + kLookahead);
    int64_t k = run.next;
    while (k < last && bytes[k] != n) k++;
    if (k == last) {
      run.refused++;
      return nullptr;
    }
    run.next = k + 1;
    const int64_t offset = run.plan->offset[k];
    if (offset < 0) return nullptr;
    if (!run.arena->place(offset, offset + n)) {
      run.refused++;
      return nullptr;
    }
    run.served++;
    return run.arena->base + offset;
  }
};

}  // namespace

extern "C" {

// Put ours before the present CPU allocator, once. 0: that one cannot free by address.
int fxmem_install() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* present = c10::GetCPUAllocator();
    if (present->raw_deleter() == nullptr) return;
    before = present;
    c10::SetCPUAllocator(new PlannedAllocator(), 255);
  });
  return before != nullptr;
}

// Reserve address space; memory is taken as it is touched. Null: there is no more.
void* fxmem_arena_new(int64_t size, int64_t segment, int64_t room, int poisons,
                      const int64_t* bytes, const int64_t* offset, int64_t forward,
                      int64_t backward) {
  auto arena = std::make_shared<Arena>();
  if (!arena->reserve(size)) return nullptr;
  const int64_t segments = (size + segment - 1) / segment;
  arena->segment = segment;
  arena->room = room;
  arena->poisons = poisons;
  arena->users.resize(segments);
  arena->committed.resize(segments);
  arena->plan[0] = {{bytes, bytes + forward}, {offset, offset + forward}};
  bytes += forward;
  offset += forward;
  arena->plan[1] = {{bytes, bytes + backward}, {offset, offset + backward}};
  std::lock_guard<std::mutex> guard(registry_mutex);
  const auto start = reinterpret_cast<uintptr_t>(arena->base);
  lowest = std::min(lowest.load(), start);
  highest = std::max(highest.load(), start + size);
  if (room >= 0) limited++;
  registry.push_back(arena);
  return arena.get();
}

// Blocks that are still alive keep the memory until they are freed.
void fxmem_arena_delete(const void* handle) {
  auto arena = find(handle);
  if (!arena) return;
  std::lock_guard<std::mutex> guard(registry_mutex);
  std::lock_guard<std::mutex> inner(arena->mutex);
  if (arena->room >= 0) limited--;
  arena->room = -1;
  arena->deleted = true;
  if (arena->live.empty()) unregister(arena.get());
}

// The arena in which an address lies, or null.
const void* fxmem_arena_of(const void* address) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (auto& arena : registry)
    if (arena->holds(address)) return arena.get();
  return nullptr;
}

// Number of live blocks, and bytes that count as allocated.
void fxmem_arena_state(const void* handle, int64_t* live, int64_t* committed) {
  *live = *committed = 0;
  auto arena = find(handle);
  if (!arena) return;
  std::lock_guard<std::mutex> guard(arena->mutex);
  *live = arena->live.size();
  for (size_t s = 0; s < arena->committed.size(); s++)
    if (arena->committed[s]) *committed += arena->bytes_of(s);
}

// Give back what no live block touches.
void fxmem_arena_trim(const void* handle) {
  auto arena = find(handle);
  if (!arena) return;
  std::lock_guard<std::mutex> guard(arena->mutex);
  if (!arena->busy) arena->give_back(arena->size);
}

// Start phase 0 or 1 on this thread, only in an idle arena if so asked. 0: the arena is in use.
int fxmem_begin(const void* handle, int phase, int idle) {
  auto arena = find(handle);
  if (!arena) return 0;
  std::lock_guard<std::mutex> guard(arena->mutex);
  if (arena->busy || (idle && !arena->live.empty())) return 0;
  arena->busy = true;
  runs.push_back({arena, &arena->plan[phase]});
  return 1;
}

// End it; how many requests were served, and how many should have been and were not.
void fxmem_end(int64_t* served, int64_t* refused) {
  const Run run = runs.back();
  runs.pop_back();
  *served = run.served;
  *refused = run.refused;
  std::lock_guard<std::mutex> guard(run.arena->mutex);
  run.arena->busy = false;
  run.arena->given = 0;
  run.arena->before = others.load();
}

// Start a recording anew, or end it; until the mark is set nothing is recorded.
void fxmem_record(int on) {
  std::lock_guard<std::mutex> guard(recording_mutex);
  recording = on;
  recorded.clear();
  if (!on) return;
  events.clear();
  blocks = 0;
}

// What this thread requests from now on belongs to operator `value`; -1: is not recorded.
void fxmem_mark(int64_t value) { mark = value; }

// Copy the events as (block, bytes, mark), if there is room; returns how many there are.
int64_t fxmem_recorded(int64_t* to, int64_t room) {
  std::lock_guard<std::mutex> guard(recording_mutex);
  const int64_t count = events.size();
  if (room >= count) memcpy(to, events.data(), count * sizeof(Event));
  return count;
}

}  // extern "C"
