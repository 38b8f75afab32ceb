// What the interpreter of PTX does: instructions against what the manual says of them, and what it
// reports of kernels that are wrong.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/fail.h"
#include "gpu/ptx/kernels.h"
#include "gpu/ptx/run.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A kernel on three addresses, of instructions after the declarations; %rd0 .. %rd2 are the
/// addresses, %r0 the thread, %rd3 the address of its word of 8 bytes in the second.
std::string kernel_of(const std::string& body, const std::string& variables = "") {
  return ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .align 8 .b8 "
         "a[24])\n{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<16>;\n" +
         variables +
         "ld.param.b64 %rd0, [a];\nld.param.b64 %rd1, [a+8];\nld.param.b64 %rd2, [a+16];\n"
         "mov.u32 %r0, %tid.x;\nmul.wide.u32 %rd4, %r0, 8;\nadd.s64 %rd3, %rd1, %rd4;\n" +
         body + "ret;\n}\n";
}

struct Buffers {
  alignas(16) std::array<uint64_t, 64> first{}, second{}, third{};
};

void run(const std::string& text, Buffers& b, int threads = 32, const KernelMemory* given = nullptr,
         int64_t blocks = 1) {
  const struct { uint64_t *a, *b, *c; } args{b.first.data(), b.second.data(), b.third.data()};
  std::vector<uint8_t> executed;
  ptx::run(ptx::decode(text), &args, blocks, threads, given, executed);
}

/// What each thread stores: 32 or 64 bits.
std::array<uint64_t, 64> results(const std::string& body, int threads = 32) {
  Buffers b;
  run(kernel_of(body), b, threads);
  return b.second;
}
/// Of one thread, for an instruction on constants: "%r1" is stored.
uint32_t value(const std::string& instruction) {
  return static_cast<uint32_t>(results(instruction + "\nst.global.b32 [%rd3], %r1;\n", 1)[0]);
}
uint64_t value64(const std::string& instruction) {
  return results(instruction + "\nst.global.b64 [%rd3], %rd5;\n", 1)[0];
}

uint32_t bits(float x) {
  uint32_t y;
  std::memcpy(&y, &x, sizeof(y));
  return y;
}
std::string hex(float x) { return fmt::format("0f{:08X}", bits(x)); }

void expect_report(const std::vector<std::string>& words, const std::string& text, int threads = 32,
                   const KernelMemory* given = nullptr) {
  Buffers b;
  expect_error(ErrorKind::internal, words, [&] { run(text, b, threads, given); });
}

TEST_CASE("PTX: integers wrap around, and their products have two halves", "[cuda][ptx]") {
  CHECK(value("add.s32 %r1, 2147483647, 1;") == 0x80000000);
  CHECK(value("sub.u32 %r1, 3, 5;") == 0xfffffffe);
  CHECK(value("mul.hi.s32 %r1, -1, 5;") == 0xffffffff);
  CHECK(value("mul.hi.u32 %r1, -1, 5;") == 4);
  CHECK(value("mad.lo.s32 %r1, -3, 5, 7;") == 0xfffffff8);
  CHECK(value64("mul.wide.s32 %rd5, -3, 5;") == static_cast<uint64_t>(-15));
  CHECK(value64("mad.wide.u32 %rd5, 4294967295, 2, 3;") == 0x200000001);
  CHECK(value64("mul.hi.u64 %rd5, -1, -1;") == ~uint64_t{1});
  CHECK(value("div.s32 %r1, -7, 2;") == static_cast<uint32_t>(-3));
  CHECK(value("rem.s32 %r1, -7, 2;") == static_cast<uint32_t>(-1));
  CHECK(value("rem.u32 %r1, 7, 4;") == 3);
  CHECK(value("min.s32 %r1, -1, 1;") == 0xffffffff);
  CHECK(value("min.u32 %r1, -1, 1;") == 1);
  CHECK(value("abs.s32 %r1, -5;") == 5);
  CHECK(value("add.cc.u32 %r2, -1, 1;\naddc.u32 %r1, 10, 0;") == 11);
  CHECK(value("sub.cc.u32 %r2, 0, 1;\nsubc.u32 %r1, 10, 0;") == 9);
  CHECK(value("mad.lo.cc.u32 %r2, 65536, 65535, 65536;\nmadc.hi.u32 %r1, 65536, 65536, 5;") == 7);
}

TEST_CASE("PTX: bits are shifted, selected and counted", "[cuda][ptx]") {
  CHECK(value("shl.b32 %r1, 1, 32;") == 0);
  CHECK(value("shr.s32 %r1, -8, 40;") == 0xffffffff);
  CHECK(value("shr.u32 %r1, -8, 1;") == 0x7ffffffc);
  CHECK(value("shf.l.wrap.b32 %r1, -2147483648, 1, 33;") == 3);
  CHECK(value("shf.r.wrap.b32 %r1, 0, 3, 1;") == 0x80000000);
  CHECK(value("shf.r.clamp.b32 %r1, 5, 3, 40;") == 3);
  CHECK(value("lop3.b32 %r1, 12, 10, 9, 0xE8;") == ((12 & 10) | (12 & 9) | (10 & 9)));
  CHECK(value("prmt.b32 %r1, 0x03020180, 0x07060504, 0x8740;") == 0xff070480);
  CHECK(value("bfe.u32 %r1, 0x1234, 4, 8;") == 0x23);
  CHECK(value("bfe.s32 %r1, 0xf0, 4, 4;") == 0xffffffff);
  CHECK(value("bfi.b32 %r1, 0xab, 0x12345678, 8, 8;") == 0x1234ab78);
  CHECK(value("clz.b32 %r1, 1;") == 31);
  CHECK(value("popc.b32 %r1, 0x70f;") == 7);
  CHECK(value("brev.b32 %r1, 1;") == 0x80000000);
  CHECK(value("bfind.u32 %r1, 0x100;") == 8);
  CHECK(value("bfind.shiftamt.u32 %r1, 0x100;") == 23);
  CHECK(value("not.b32 %r1, 5;") == ~5U);
  CHECK(value("mov.b64 %rd5, {1, 2};\nmov.b64 {%r2, %r1}, %rd5;") == 2);
  CHECK(value64("mov.b64 %rd5, {1, 2};") == 0x200000001);
  CHECK(value("setp.lt.s32 %p1, -1, 0;\nselp.b32 %r1, 3, 4, %p1;") == 3);
  CHECK(value("setp.lt.u32 %p1, -1, 0;\nselp.b32 %r1, 3, 4, %p1;") == 4);
  CHECK(value("setp.eq.s32 %p1|%p2, 1, 2;\nsetp.eq.and.s32 %p3, 1, 1, %p2;\nselp.b32 %r1, 3, 4, "
              "%p3;") == 3);
  CHECK(value("setp.eq.s32 %p1, 1, 2;\nnot.pred %p2, %p1;\nxor.pred %p3, %p1, %p2;\nselp.b32 %r1, "
              "3, 4, %p3;") == 3);
}

TEST_CASE("PTX: numbers are rounded as their modifiers say", "[cuda][ptx]") {
  const float third = 1.0F / 3;
  CHECK(value("div.rn.f32 %r1, 0f3F800000, 0f40400000;") == bits(third));
  CHECK(value("div.rz.f32 %r1, 0f3F800000, 0f40400000;") == bits(std::nextafter(third, 0.0F)));
  CHECK(value("add.rp.f32 %r1, 0f3F800000, 0f2F800000;") == bits(std::nextafter(1.0F, 2.0F)));
  CHECK(value("fma.rn.f32 %r1, " + hex(1 + 0x1p-12F) + ", " + hex(1 - 0x1p-12F) + ", " + hex(-1) +
              ";") == bits(-0x1p-24F));
  CHECK(value("min.f32 %r1, 0f7FC00000, 0f3F800000;") == bits(1));
  CHECK(std::isnan(std::bit_cast<float>(value("max.NaN.f32 %r1, 0f7FC00000, 0f3F800000;"))));
  CHECK(value("max.f32 %r1, 0f80000000, 0f00000000;") == 0);
  CHECK(value("mul.ftz.f32 %r1, 0f00800000, 0f3F000000;") == 0);
  CHECK(value("mul.rn.f32 %r1, 0f00800000, 0f3F000000;") == 0x400000);
  CHECK(value("add.sat.f32 %r1, 0f3F800000, 0f3F800000;") == bits(1));
  CHECK(value("ex2.approx.ftz.f32 %r1, 0f40400000;") == bits(8));
  CHECK(value("copysign.f32 %r1, 0f80000000, 0f3F800000;") == bits(-1));
  CHECK(value("testp.infinite.f32 %p1, 0fFF800000;\nselp.b32 %r1, 3, 4, %p1;") == 3);
  CHECK(value("setp.ltu.f32 %p1, 0f7FC00000, 0f3F800000;\nselp.b32 %r1, 3, 4, %p1;") == 3);
  CHECK(value("setp.ne.f32 %p1, 0f7FC00000, 0f3F800000;\nselp.b32 %r1, 3, 4, %p1;") == 4);
  CHECK(value("cvt.rzi.s32.f32 %r1, 0fC0200000;") == static_cast<uint32_t>(-2));
  CHECK(value("cvt.rmi.s32.f32 %r1, 0fC0200000;") == static_cast<uint32_t>(-3));
  CHECK(value("cvt.rni.f32.f32 %r1, 0f40200000;") == bits(2));
  CHECK(value("cvt.rzi.s32.f32 %r1, 0f7F800000;") == 0x7fffffff);
  CHECK(value("cvt.rzi.u32.f32 %r1, 0fC0200000;") == 0);
  CHECK(value("cvt.rz.f32.s32 %r1, 16777219;") == bits(16777218));
  CHECK(value("cvt.rn.f32.s32 %r1, 16777219;") == bits(16777220));
  CHECK(value("cvt.s32.s8 %r1, 0x1ff;") == 0xffffffff);
  CHECK(value("cvt.u32.u8 %r1, 0x1ff;") == 0xff);
  CHECK(value("cvt.sat.u8.s32 %r1, 300;") == 255);
  // The first operand is the upper half; halves are rounded to even.
  CHECK(value("cvt.rn.bf16x2.f32 %r1, 0f40000000, 0f3F808000;") == 0x40003f80);
  CHECK(value("cvt.rn.f16x2.f32 %r1, 0f40000000, 0f3F800000;") == 0x40003c00);
  CHECK(value("mov.b16 %h1, 0x3fc0;\ncvt.f32.bf16 %r1, %h1;") == bits(1.5F));
}

TEST_CASE("PTX: lanes shuffle, vote and meet", "[cuda][ptx]") {
  const std::string store = "st.global.b32 [%rd3], %r1;\n";
  const auto down = results("shfl.sync.down.b32 %r1|%p1, %r0, 3, 31, -1;\n" + store);
  const auto up = results("shfl.sync.up.b32 %r1, %r0, 3, 0, -1;\n" + store);
  const auto index = results("shfl.sync.idx.b32 %r1, %r0, 5, 31, -1;\n" + store);
  const auto flipped = results("shfl.sync.bfly.b32 %r1, %r0, 5, 31, -1;\n" + store);
  const auto within = results(
      "shfl.sync.down.b32 %r1|%p1, %r0, 3, 0x181f, -1;\nselp.b32 %r1, 1, "
      "0, %p1;\n" +
      store);
  const auto odd = results(
      "and.b32 %r1, %r0, 1;\nsetp.eq.s32 %p1, %r1, 1;\nvote.sync.ballot.b32 "
      "%r1, %p1, -1;\n" +
      store);
  const auto all = results(
      "setp.lt.s32 %p1, %r0, 31;\nvote.sync.all.pred %p2, %p1, -1;\n"
      "vote.sync.any.pred %p3, %p1, -1;\nselp.b32 %r1, 1, 0, %p2;\nselp.b32 "
      "%r2, 2, 0, %p3;\nadd.u32 %r1, %r1, %r2;\n" +
      store);
  for (uint64_t lane = 0; lane < 32; ++lane) {
    CHECK(down[lane] == (lane + 3 < 32 ? lane + 3 : lane));
    CHECK(up[lane] == (lane >= 3 ? lane - 3 : lane));
    CHECK(index[lane] == 5);
    CHECK(flipped[lane] == (lane ^ 5));
    CHECK(within[lane] == (lane % 8 + 3 < 8 ? 1 : 0));
    CHECK(odd[lane] == 0xaaaaaaaa);
    CHECK(all[lane] == 2);
  }
}

TEST_CASE("PTX: lanes that part meet again", "[cuda][ptx]") {
  // Lane l counts to l in a loop; all of them then shuffle.
  const auto x = results(
      "mov.u32 %r2, 0;\nL1: setp.ge.u32 %p1, %r2, %r0;\n@%p1 bra L2;\nadd.u32 %r2, %r2, 1;\n"
      "bra.uni L1;\nL2: shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;\nst.global.b32 [%rd3], %r1;\n");
  for (uint64_t lane = 0; lane < 32; ++lane) CHECK(x[lane] == (lane ^ 1));
}

TEST_CASE("PTX: atomics, functions, tables of branches, and variables", "[cuda][ptx]") {
  Buffers b;
  run(kernel_of("atom.global.add.u32 %r1, [%rd2], %r0;\nred.global.max.u32 [%rd2+4], %r0;\n"
                "atom.global.cas.b64 %rd5, [%rd2+8], 0, 7;\natom.global.exch.b32 %r2, [%rd2+16], "
                "9;\nred.global.add.f32 [%rd2+20], 0f3F800000;\n"),
      b);
  CHECK(b.third[0] == (uint64_t{31} << 32 | 496));
  CHECK(b.third[1] == 7);
  CHECK(b.third[2] == (uint64_t{bits(32)} << 32 | 9));

  std::string text = kernel_of(
      "rem.u32 %r1, %r0, 3;\nT: .branchtargets A, B, C;\nbrx.idx %r1, T;\nA: mov.u32 %r2, 10;\n"
      "bra E;\nB: mov.u32 %r2, 20;\nbra E;\nC: mov.u32 %r2, 30;\nE:\n{\n.param .b32 p0;\n.param "
      ".b32 q0;\nst.param.b32 [p0], %r2;\ncall.uni (q0), half, (p0);\nld.param.b32 %r3, [q0];\n}\n"
      "mov.u64 %rd5, numbers;\nld.global.u32 %r4, [%rd5+4];\nadd.u32 %r3, %r3, %r4;\n"
      "mov.u64 %rd6, own;\nst.local.u32 [%rd6+4], %r3;\nld.local.u32 %r5, [%rd6+4];\n"
      "st.global.b32 [%rd3], %r5;\n",
      ".local .align 8 .b8 own[16];\n");
  text.insert(text.find(".visible"),
              ".global .align 4 .u32 numbers[2] = {5, 1000};\n"
              ".func (.param .b32 r) half(.param .b32 x)\n{\n.reg .b32 %r<3>;\nld.param.b32 %r1, "
              "[x];\nshr.u32 %r2, %r1, 1;\nst.param.b32 [r], %r2;\nret;\n}\n");
  run(text, b);
  for (uint64_t lane = 0; lane < 32; ++lane) CHECK(b.second[lane] == 1005 + lane % 3 * 5);
}

TEST_CASE("PTX: groups of copies into shared memory end in their order", "[cuda][ptx]") {
  Buffers b;
  for (uint64_t i = 0; i < 64; ++i) b.first[i] = i;
  const std::string copies =
      "mov.u32 %r1, tile;\nshl.b32 %r2, %r0, 3;\nadd.u32 %r1, %r1, %r2;\nadd.s64 %rd5, %rd0, "
      "%rd4;\ncp.async.ca.shared.global [%r1], [%rd5], 8;\ncp.async.commit_group;\n"
      "cp.async.ca.shared.global [%r1+256], [%rd5+256], 8, 0;\ncp.async.commit_group;\n"
      "cp.async.wait_group 1;\nld.shared.u64 %rd6, [%r1];\nst.global.u64 [%rd3], %rd6;\n";
  const std::string tile = ".shared .align 16 .b8 tile[512];\n";
  run(kernel_of(copies + "cp.async.wait_all;\nld.shared.u64 %rd7, [%r1+256];\nst.global.u64 "
                         "[%rd3+256], %rd7;\n",
                tile),
      b);
  for (uint64_t i = 0; i < 32; ++i) {
    CHECK(b.second[i] == i);
    CHECK(b.second[i + 32] == 0);
  }
  expect_report({"byte 256 of 'tile'", "is being copied by thread 0", "has not waited for it"},
                kernel_of(copies + "ld.shared.u64 %rd7, [%r1+256];\n", tile));
  expect_report({"the thread ends", "copies that it did not wait for"}, kernel_of(copies, tile));
}

TEST_CASE("PTX: matrices are loaded by rows or by columns", "[cuda][ptx]") {
  Buffers b;
  // Rows of 16 bytes, of which 16-bit element e of row r is 8 r + e.
  const std::string fill =
      "mov.u32 %r1, tile;\nshl.b32 %r2, %r0, 4;\nadd.u32 %r1, %r1, %r2;\nshl.b32 %r3, %r0, 3;\n"
      "mul.lo.u32 %r4, %r3, 65537;\nadd.u32 %r5, %r4, 0x10000;\nadd.u32 %r6, %r4, 0x30002;\n"
      "add.u32 %r7, %r4, 0x50004;\nadd.u32 %r8, %r4, 0x70006;\n"
      "st.shared.v4.b32 [%r1], {%r5, %r6, %r7, %r8};\nbar.sync 0;\n";
  const std::string tile = ".shared .align 16 .b8 tile[512];\n";
  run(kernel_of(fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r1];\n"
                       "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r10, %r11}, [%r1];\n"
                       "st.global.v2.b32 [%rd3], {%r9, %r11};\n",
                tile),
      b);
  for (uint64_t lane = 0; lane < 32; ++lane) {
    const auto element = [](uint64_t row, uint64_t column) { return 8 * row + column; };
    const uint64_t line = lane / 4, first = lane % 4 * 2;
    const uint64_t plain = element(line, first) | element(line, first + 1) << 16;
    const uint64_t turned = element(8 + first, line) | element(9 + first, line) << 16;
    CHECK(b.second[lane] == (plain | turned << 32));
  }
}

TEST_CASE("PTX that is wrong is reported with its line, thread and block", "[cuda][ptx]") {
  const std::string tile = ".shared .align 16 .b8 tile[128];\n";
  const std::string mine = "mov.u32 %r1, tile;\nshl.b32 %r2, %r0, 2;\nadd.u32 %r1, %r1, %r2;\n";
  expect_report(
      {"line 16", "thread 0 of block 0", "ld.global.v2.u64", "not aligned", "8 modulo 16"},
      kernel_of("ld.global.v2.u64 {%rd5, %rd6}, [%rd0+8];\n"));
  Buffers b;
  const KernelMemory given{{{b.first.data(), 64}}, {{b.second.data(), 64}}, {}};
  const auto with_memory = [&](const std::vector<std::string>& words, const std::string& body) {
    expect_error(ErrorKind::internal, words, [&] { run(kernel_of(body), b, 1, &given); });
  };
  with_memory({"reads 4 bytes outside", "at byte 64 of 64 that it reads"},
              "ld.global.u32 %r1, [%rd0+64];\n");
  with_memory({"writes 4 bytes outside", "4 bytes before 64 that it writes"},
              "st.global.u32 [%rd1+-4], %r0;\n");
  with_memory({"writes 4 bytes outside", "at byte 0 of 64 that it reads"},
              "st.global.u32 [%rd0], %r0;\n");
  with_memory({"by the read-only cache what the kernel writes"}, "ld.global.nc.u32 %r1, [%rd1];\n");
  expect_report({"4 bytes of shared memory at 128", "'tile' [0, 128)"},
                kernel_of(mine + "st.shared.u32 [%r1+128], %r0;\n", tile), 1);
  expect_report({"which no thread of the block wrote", "byte 0 of 'tile'"},
                kernel_of(mine + "ld.shared.u32 %r3, [%r1];\n", tile));
  expect_report({"16 bytes of local memory at 16", "a thread has 16"},
                kernel_of("mov.u64 %rd5, own;\nst.local.v2.u64 [%rd5+16], {%rd0, %rd1};\n",
                          ".local .align 16 .b8 own[16];\n"));
  expect_report({"it reads parameters up to byte 32", "has 24"},
                kernel_of("ld.param.u64 %rd5, [a+24];\n"));
  expect_report({"the kernel gives up"}, kernel_of("trap;\n"));
  expect_report(
      {"shuffles from lane 3, which does not take part"},
      kernel_of("setp.lt.u32 %p1, %r0, 2;\n@%p1 shfl.sync.bfly.b32 %r1, %r0, 3, 31, 3;\n"));
  expect_report({"its block has jumped 100000000 times", "may never end"}, kernel_of("L: bra L;\n"),
                1);
}

TEST_CASE("PTX: what no barrier orders in shared memory is a race", "[cuda][ptx]") {
  const std::string tile = ".shared .align 16 .b8 tile[512];\n";
  const std::string write =
      "mov.u32 %r1, tile;\nshl.b32 %r2, %r0, 2;\nadd.u32 %r1, %r1, %r2;\nst.shared.u32 [%r1], "
      "%r0;\n";
  const std::string read =
      "xor.b32 %r3, %r2, $;\nmov.u32 %r4, tile;\nadd.u32 %r4, %r4, %r3;\n"
      "ld.shared.u32 %r5, [%r4];\n";
  const auto from = [&](const std::string& distance) {
    std::string text = read;
    return text.replace(text.find('$'), 1, distance);
  };
  Buffers b;
  run(kernel_of(write + "bar.sync 0;\n" + from("128"), tile), b, 64);
  run(kernel_of(write + "bar.warp.sync -1;\n" + from("4"), tile), b, 64);
  expect_report(
      {"a race: it reads byte", "which thread", "wrote since the last barrier"},
      kernel_of(write + "setp.gt.u32 %p1, %r0, 7;\n@%p1 bra E;\n" + from("4") + "E:\n", tile));
  expect_report({"a race", "wrote"},
                kernel_of(write + "bar.warp.sync -1;\nsetp.lt.u32 %p1, %r0, 32;\n@%p1 bra E;\n" +
                              from("128") + "E:\n",
                          tile),
                64);
  expect_report({"a race: it writes", "which thread 1 wrote"},
                kernel_of(write + "xor.b32 %r3, %r1, 4;\nst.shared.u32 [%r3], %r0;\n", tile));
  // The second warp writes what the first one reads, before or behind a barrier.
  const std::string second = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra E;\n";
  const std::string both = write + "bar.sync 0;\nld.shared.u32 %r5, [tile];\n";
  const std::string own = "st.shared.u32 [tile], %r0;\n";
  expect_report({"a race: it writes", "which threads of warp 0 read since the last barrier"},
                kernel_of(write +
                              "bar.sync 0;\nsetp.lt.u32 %p2, %r0, 32;\n@%p2 ld.shared.u32 %r5, "
                              "[tile];\n" +
                              second + own + "E:\n",
                          tile),
                33);
  expect_report({"a race: it writes", "which threads of several warps read"},
                kernel_of(both + second + own + "E:\n", tile), 33);
  run(kernel_of(both + "bar.sync 0;\n" + second + own + "E:\n", tile), b, 33);
  run(kernel_of(write + "bar.sync 0;\natom.shared.add.u32 %r5, [tile], %r0;\n", tile), b, 64);
}

TEST_CASE("PTX: threads that wait for others that do not come are reported", "[cuda][ptx]") {
  const std::string some = "setp.lt.u32 %p1, %r0, 7;\n";
  expect_report({"divergence", "it waits for thread 7, which has ended"},
                kernel_of(some + "@!%p1 bra E;\nbar.sync 0;\nE:\n"));
  expect_report({"thread 0", "divergence: other threads wait at line 18", "bar.sync 0"},
                kernel_of(some + "@%p1 bra E;\nbar.sync 0;\nbra F;\nE: bar.sync 0;\nF:\n"));
  expect_report({"divergence", "which waits at line", "bar.warp.sync"},
                kernel_of(some + "@%p1 bra E;\nbar.warp.sync -1;\nbra F;\nE: bar.sync 0;\nF:\n"));
  expect_report({"it needs lane 7, which has ended"},
                kernel_of(some + "@!%p1 ret;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\n"));
  expect_report({"its mask is 0x3, and it is none of these lanes"},
                kernel_of("shfl.sync.bfly.b32 %r1, %r0, 1, 31, 3;\n"));
}

TEST_CASE("kernels run as what TESSERA_TEST_KERNELS says", "[cuda][ptx]") {
  const char* before = std::getenv("TESSERA_TEST_KERNELS");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TESSERA_TEST_KERNELS", "ptx", 1);
  CHECK(kernels_by_default() == KernelsAs::ptx);
  setenv("TESSERA_TEST_KERNELS", "cubin", 1);
  expect_error(ErrorKind::internal, {"TESSERA_TEST_KERNELS is 'cubin'", "c++ or ptx"},
               [] { kernels_by_default(); });
  unsetenv("TESSERA_TEST_KERNELS");
  CHECK(kernels_by_default() == KernelsAs::cpp);
  if (before != nullptr) setenv("TESSERA_TEST_KERNELS", kept.c_str(), 1);
}

TEST_CASE("PTX that is not translated is an error with its line", "[cuda][ptx]") {
  const auto expect = [](const std::vector<std::string>& words, const std::string& text) {
    expect_error(ErrorKind::internal, words, [&] { ptx::decode(text); });
  };
  expect({"line 16", "'wgmma.fence.sync.aligned': it is not translated"},
         kernel_of("wgmma.fence.sync.aligned;\n"));
  expect({"'%r99' is not known"}, kernel_of("mov.u32 %r1, %r99;\n"));
  expect({"'%h1' has 2 bytes, not 4"}, kernel_of("add.u32 %r1, %r2, %h1;\n"));
  expect({"it has 2 operands, not 3"}, kernel_of("add.u32 %r1, %r2;\n"));
  expect({"line 16", "no label", "NOWHERE"}, kernel_of("bra NOWHERE;\n"));
  expect({"no function 'f'"}, kernel_of("call.uni f;\n"));
  expect({"only barrier 0"}, kernel_of("bar.sync 1;\n"));
  expect({"it has no .entry"}, ".version 9.0\n");
  expect({"line 2", "is no declaration"}, ".version 9.0\nnonsense\n");
  expect({"'.q7' is no type"}, kernel_of("", ".reg .q7 %q<3>;\n"));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
