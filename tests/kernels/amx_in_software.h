// AMX's tile registers emulated in plain C++. amx-g++ includes this before our kernels, so that their AMX code is
// tested on processors without AMX. It follows Intel's Software Developer's Manual, volume 2 (TDPBF16PS, TDPBSUD),
// and aborts if shapes do not match. The kernels also need AVX-512 BF16; without it this header has no effect.

#pragma once

#if defined(__AVX512BF16__)

#include <immintrin.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace amx_in_software {

struct Register {
  int rows = 0, bytes = 0;
  alignas(64) uint8_t row[16][64] = {};
};

inline thread_local Register registers[8];
inline thread_local bool configured = false;

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "AMX in software: %s\n", what);
  std::abort();
}

inline Register& at(int i) {
  expect(configured, "a tile is used before its shape is set");
  expect(registers[i].rows > 0, "a tile without rows is used");
  return registers[i];
}

inline void configure(const void* config) {
  uint8_t raw[64];
  std::memcpy(raw, config, sizeof raw);
  expect(raw[0] == 1, "the palette is not 1");
  for (int i = 0; i < 8; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, raw + 16 + 2 * i, sizeof bytes);
    expect(raw[48 + i] <= 16 && bytes <= 64, "a tile has at most 16 rows of 64 bytes");
    registers[i] = Register{raw[48 + i], bytes};
  }
  configured = true;
}

inline void release() { configured = false; }

inline void load(int i, const void* base, int64_t stride) {
  Register& to = at(i);
  std::memset(to.row, 0, sizeof to.row);
  for (int r = 0; r < to.rows; ++r)
    std::memcpy(to.row[r], static_cast<const uint8_t*>(base) + r * stride, to.bytes);
}

inline void store(int i, void* base, int64_t stride) {
  const Register& from = at(i);
  for (int r = 0; r < from.rows; ++r)
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, from.row[r], from.bytes);
}

inline void zero(int i) { std::memset(at(i).row, 0, sizeof registers[i].row); }

inline float wide(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// to[m][n] += sum over k of left[m][2k] right[k][2n] + left[m][2k+1] right[k][2n+1]
inline void multiply(int to, int left, int right) {
  Register &c = at(to), &a = at(left), &b = at(right);
  expect(to != left && to != right && left != right, "a product needs three tiles");
  expect(a.rows == c.rows && b.rows == a.bytes / 4 && b.bytes == c.bytes, "the shapes of a product do not fit");
  uint16_t halves[2][16][32];
  std::memcpy(halves[0], a.row, sizeof halves[0]);
  std::memcpy(halves[1], b.row, sizeof halves[1]);
  for (int m = 0; m < c.rows; ++m) {
    float sums[16];
    std::memcpy(sums, c.row[m], sizeof sums);
    for (int k = 0; k < b.rows; ++k) {
      const float even = wide(halves[0][m][2 * k]), odd = wide(halves[0][m][2 * k + 1]);
      for (int n = 0; n < 16; ++n)
        sums[n] += even * wide(halves[1][k][2 * n]) + odd * wide(halves[1][k][2 * n + 1]);
    }
    std::memcpy(c.row[m], sums, c.bytes);
  }
}

// to[m][n] += sum over k of the products of four signed bytes of left with four unsigned ones of right
inline void multiply_bytes(int to, int left, int right) {
  Register &c = at(to), &a = at(left), &b = at(right);
  expect(to != left && to != right && left != right, "a product needs three tiles");
  expect(a.rows == c.rows && b.rows == a.bytes / 4 && b.bytes == c.bytes, "the shapes of a product do not fit");
  for (int m = 0; m < c.rows; ++m) {
    int32_t sums[16];
    std::memcpy(sums, c.row[m], sizeof sums);
    for (int k = 0; k < b.rows; ++k)
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 4; ++i) sums[n] += int32_t(int8_t(a.row[m][4 * k + i])) * int32_t(b.row[k][4 * n + i]);
    std::memcpy(c.row[m], sums, c.bytes);
  }
}

}  // namespace amx_in_software

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig amx_in_software::configure
#define _tile_release amx_in_software::release
#define _tile_loadd amx_in_software::load
#define _tile_stored amx_in_software::store
#define _tile_zero amx_in_software::zero
#define _tile_dpbf16ps amx_in_software::multiply
#define _tile_dpbsud amx_in_software::multiply_bytes
#undef __AMX_BF16__
#define __AMX_BF16__ 1
#undef __AMX_INT8__
#define __AMX_INT8__ 1

#endif
