// ranks on the CPU: collective operations of the ranks of one machine, in memory that they share. See collective.py.
//
// Each rank alternates between two areas. A call writes x to one of them, waits at a barrier for all ranks, and reads the
// areas of all. No rank writes an area that another still reads: before it writes the same one again, it has passed the
// barrier of the call between, where the others arrive only after they have read. All ranks add in the same order, so
// all get the same bits. A waiting rank spins, then sleeps, because there may be fewer cores than ranks.

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lanes.h"

namespace ringkv {
namespace {

constexpr int64_t kLine = 64;  // bytes
constexpr int64_t kSpins = 1 << 17;        // tests of a barrier before a rank sleeps, if each rank has a core
constexpr int64_t kSleep = 100'000'000;    // nanoseconds of sleep between two checks for a failed or late rank
constexpr int64_t kDividedFloats = 16384;  // from here on, more than two ranks divide the sum

// arrived: arrivals of all ranks. open: times that all ranks had arrived.
struct alignas(kLine) Barrier {
  std::atomic<uint64_t> arrived;
  std::atomic<uint32_t> open, sleepers;
};

struct alignas(kLine) Header {
  std::atomic<int64_t> failed;  // 1 + the rank that has ended
  Barrier calls, sums;
};

struct alignas(kLine) Progress {
  std::atomic<uint64_t> calls;  // that a rank has made
};

struct Sum {
  static Vec both(Vec a, Vec b) { return a + b; }
};

struct Max {
  static Vec both(Vec a, Vec b) { return at::vec::maximum(a, b); }
};

class Ranks {
 public:
  // descriptor: of the shared memory. floats: in an area.
  Ranks(int64_t descriptor, int64_t rank, int64_t count, int64_t floats, double seconds)
      : rank_(rank), count_(count), floats_(floats), seconds_(seconds),
        spins_(count <= int64_t(std::thread::hardware_concurrency()) ? kSpins : 1) {
    TORCH_CHECK(ftruncate(int(descriptor), bytes(count, floats)) == 0, "ranks get no memory: ", std::strerror(errno));
    void* memory = mmap(nullptr, bytes(count, floats), PROT_READ | PROT_WRITE, MAP_SHARED, int(descriptor), 0);
    TORCH_CHECK(memory != MAP_FAILED, "ranks get no memory: ", std::strerror(errno));
    header_ = static_cast<Header*>(memory);
    progress_ = reinterpret_cast<Progress*>(header_ + 1);
    areas_ = reinterpret_cast<float*>(progress_ + count);
  }

  static int64_t bytes(int64_t count, int64_t floats) {
    return sizeof(Header) + count * sizeof(Progress) + 2 * (count + 1) * floats * sizeof(float);
  }

  void fail(int64_t rank) { header_->failed = rank + 1; }
  int64_t rank() const { return rank_; }
  int64_t floats() const { return floats_; }
  int64_t count() const { return count_; }
  const float* area(int64_t rank) const { return areas_ + ((call_ & 1) * (count_ + 1) + rank) * floats_; }

  // Writes the first n floats at x to this rank's area, and waits until all ranks have written theirs.
  void exchange(const float* x, int64_t n) {
    ++call_;
    std::memcpy(writable(rank_), x, n * sizeof(float));
    progress_[rank_].calls = call_;
    wait(header_->calls, call_);
  }

  // to[0..n) = all ranks' x, combined.
  template <typename Op>
  void combine(const float* x, int64_t n, float* to) {
    exchange(x, n);
    if (count_ == 2 || n < kDividedFloats) return add<Op>(0, n, to);
    const int64_t piece = (n + count_ - 1) / count_, from = std::min(rank_ * piece, n), stop = std::min(from + piece, n);
    float* sums = writable(count_);  // after the areas of all ranks
    add<Op>(from, stop, sums);
    wait(header_->sums, ++sums_);
    std::memcpy(to, sums, n * sizeof(float));
  }

 private:
  float* writable(int64_t rank) { return const_cast<float*>(area(rank)); }

  template <typename Op>
  void add(int64_t from, int64_t to, float* sums) const {
    at::parallel_for(from, to, kDividedFloats, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += Vec::size()) {
        const int64_t n = std::min<int64_t>(Vec::size(), end - i);
        Vec sum = Vec::loadu(area(0) + i, n);
        for (int64_t rank = 1; rank < count_; ++rank) sum = Op::both(sum, Vec::loadu(area(rank) + i, n));
        sum.store(sums + i, n);
      }
    });
  }

  // Waits until all ranks have arrived for the `goal`th time.
  void wait(Barrier& barrier, uint64_t goal) const {
    if (++barrier.arrived == goal * count_) {
      barrier.open = uint32_t(goal);
      if (barrier.sleepers > 0) futex(barrier, FUTEX_WAKE, INT32_MAX, nullptr);
      return;
    }
    for (int64_t spin = 0; spin < spins_; ++spin)
      if (is_open(barrier, goal)) return;
    sleep(barrier, goal);
  }

  static bool is_open(const Barrier& barrier, uint64_t goal) { return int32_t(barrier.open - uint32_t(goal)) >= 0; }

  static void futex(Barrier& barrier, int operation, uint32_t value, const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&barrier.open), operation, value, timeout, nullptr, 0);
  }

  void sleep(Barrier& barrier, uint64_t goal) const {
    const timespec timeout{0, kSleep};
    const auto began = std::chrono::steady_clock::now();
    ++barrier.sleepers;
    for (uint32_t seen = barrier.open; !is_open(barrier, goal); seen = barrier.open) {
      check(std::chrono::steady_clock::now() - began);
      futex(barrier, FUTEX_WAIT, seen, &timeout);
    }
    --barrier.sleepers;
  }

  void check(std::chrono::duration<double> waited) const {
    const int64_t failed = header_->failed;
    TORCH_CHECK(failed == 0, "rank ", failed - 1, " has ended");
    if (waited.count() < seconds_) return;
    int64_t late = 0;
    while (late + 1 < count_ && progress_[late].calls >= call_) ++late;
    TORCH_CHECK(false, "rank ", late, " has not answered for ", seconds_, " s");
  }

  Header* header_;
  Progress* progress_;
  float* areas_;
  const int64_t rank_, count_, floats_;
  const double seconds_;
  const int64_t spins_;
  uint64_t call_ = 0, sums_ = 0;
};

std::unique_ptr<Ranks> ranks;

Ranks& connected() {
  TORCH_CHECK(ranks, "this process is not connected to other ranks");
  return *ranks;
}

void connect(int64_t descriptor, int64_t rank, int64_t count, int64_t floats, double seconds) {
  ranks = std::make_unique<Ranks>(descriptor, rank, count, floats, seconds);
}

void fail(int64_t rank) { connected().fail(rank); }

template <typename Op>
at::Tensor all_combined(const at::Tensor& given) {
  const auto x = given.to(at::kFloat).contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const int64_t floats = connected().floats();
  for (int64_t from = 0; from < x.numel(); from += floats)
    connected().combine<Op>(x.const_data_ptr<float>() + from, std::min(floats, x.numel() - from),
                            y.data_ptr<float>() + from);
  return y;
}

// Elements of all ranks' columns before those of `rank`.
int64_t before(at::IntArrayRef widths, int64_t rank) {
  return std::accumulate(widths.begin(), widths.begin() + rank, int64_t(0));
}

// Rows of `width` elements that fit in an area, a multiple of `unit`.
int64_t fitting_rows(int64_t width, int64_t unit) {
  const int64_t rows = connected().floats() / width / unit * unit;
  TORCH_CHECK(rows > 0, "ranks cannot exchange rows of ", width, " elements");
  return rows;
}

// Writes x [N, own width]; reads every `unit`th row, from row `first` on, from the areas of all.
at::Tensor gathered(const at::Tensor& given, at::IntArrayRef widths, int64_t first, int64_t unit) {
  const auto x = given.to(at::kFloat).contiguous();
  const int64_t count = connected().count(), width = x.size(1), total = before(widths, count);
  TORCH_CHECK(int64_t(widths.size()) == count && x.size(0) % unit == 0, "gathered: ", x.size(0), " rows and ",
              widths.size(), " widths for ", count, " ranks");
  const int64_t step = fitting_rows(*std::max_element(widths.begin(), widths.end()), unit);
  auto y = at::empty({x.size(0) / unit, total}, x.options());
  float* to = y.data_ptr<float>();
  for (int64_t from = 0; from < x.size(0); from += step) {
    const int64_t rows = std::min(step, x.size(0) - from);
    connected().exchange(x.const_data_ptr<float>() + from * width, rows * width);
    for (int64_t row = first; row < rows; row += unit)
      for (int64_t rank = 0; rank < count; to += widths[rank++])
        std::memcpy(to, connected().area(rank) + row * widths[rank], widths[rank] * sizeof(float));
  }
  return y;
}

at::Tensor all_gather(const at::Tensor& x, at::IntArrayRef widths) { return gathered(x, widths, 0, 1); }

at::Tensor columns_to_rows(const at::Tensor& x, at::IntArrayRef widths) {
  return gathered(x, widths, connected().rank(), connected().count());
}

// Writes this rank's rows x [N / count, all widths]; reads its columns from the areas of all, a row of each in turn.
at::Tensor rows_to_columns(const at::Tensor& given, at::IntArrayRef widths, int64_t width) {
  const auto x = given.to(at::kFloat).contiguous();
  const int64_t count = connected().count(), total = before(widths, count), first = before(widths, connected().rank());
  TORCH_CHECK(x.size(1) == total && widths[connected().rank()] == width, "rows_to_columns: rows of ", x.size(1),
              " elements, of which rank ", connected().rank(), " takes ", width, ", do not have the given widths");
  const int64_t step = fitting_rows(total, 1);
  auto y = at::empty({x.size(0) * count, width}, x.options());
  float* to = y.data_ptr<float>();
  for (int64_t from = 0; from < x.size(0); from += step) {
    const int64_t rows = std::min(step, x.size(0) - from);
    connected().exchange(x.const_data_ptr<float>() + from * total, rows * total);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t rank = 0; rank < count; ++rank, to += width)
        std::memcpy(to, connected().area(rank) + row * total + first, width * sizeof(float));
  }
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("all_reduce_memory", &ringkv::all_combined<ringkv::Sum>);
  m.impl("all_max_memory", &ringkv::all_combined<ringkv::Max>);
  m.impl("all_gather_memory", &ringkv::all_gather);
  m.impl("columns_to_rows_memory", &ringkv::columns_to_rows);
  m.impl("rows_to_columns_memory", &ringkv::rows_to_columns);
}

TORCH_LIBRARY_IMPL(ringkv, CompositeExplicitAutograd, m) {
  m.impl("connect_ranks", &ringkv::connect);
  m.impl("fail_rank", &ringkv::fail);
}
