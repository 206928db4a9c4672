"""What is read off a program's text."""

import pytest

from jaxpipe.aot.collectives import Collective, find_collectives, find_sends

TEXT = """\
HloModule step

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %send = (f32[4,8]{1,0}, f32[4,8]{1,0}) collective-permute-start(%x), source_target_pairs={{0,1}}
  %phase = f32[4,8]{1,0} while(%x), condition=%inner_condition, body=%inner
  %got = f32[4,8]{1,0} collective-permute-done(%send)
  %send.1 = (f32[4,8], f32[4,8]) collective-permute-start(%got), source_target_pairs={{1,0}}
  %got.1 = f32[4,8]{1,0} collective-permute-done(%send.1)
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%p, %got.1)
}

%inner (q: f32[4,8]) -> f32[4,8] {
  %q = f32[4,8]{1,0} parameter(0)
  ROOT %d = f32[4,8]{1,0} dot(%q, %q)
}

%inner_condition (q: f32[4,8]) -> pred[] {
  %q = f32[4,8]{1,0} parameter(0)
  ROOT %c = pred[] constant(true)
}

%condition (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main (a: f32[4,8]) -> bf16[16] {
  %a = f32[4,8]{1,0} parameter(0)
  %loop = (s32[], f32[4,8]{1,0}) while(%a), condition=%condition, body=%body
  %r = bf16[16]{0} all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%condition
  ROOT %s = bf16[16]{0} all-reduce(%r), replica_groups=[2,2]<=[4], to_apply=%condition
}
"""


def test_collectives_by_kind_place_and_devices():
    assert find_collectives(TEXT) == (
        Collective(kind="all-reduce", in_loop=False, count=2, bytes=64, groups=((0, 1), (2, 3))),
        Collective(kind="collective-permute", in_loop=True, count=1, bytes=128, groups=((0, 1),)),
        Collective(kind="collective-permute", in_loop=True, count=1, bytes=128, groups=((1, 0),)),
    )


@pytest.mark.parametrize(
    ("line", "size"),
    [
        # START of an all-reduce has its result alone; others have their operands beside it.
        ("f32[8]{0} all-reduce-start(%a)", 32),
        ("(f32[8]{0}, f32[32]{0}) all-gather-start(%a)", 128),
        ("((f32[8], bf16[2]), (f32[32], bf16[8])) all-gather-start(%a, %b)", 144),
        ("(f32[8], f32[8], u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a)", 32),
        ("(f32[8], f32[4]) all-to-all(%a, %b)", 48),
    ],
)
def test_bytes_of_a_result(line, size):
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  ROOT %r = {line}, channel_id=1\n}}\n"
    (found,) = find_collectives(text)
    assert found.bytes == size
    assert found.groups is None


def test_sends_and_what_runs_beside_them():
    found = [(each.name, each.in_loop, each.is_hidden) for each in find_sends(TEXT)]
    assert found == [("send", True, True), ("send.1", True, False)]


@pytest.mark.parametrize(
    ("line", "is_work"),
    [
        ("dot(%x, %x)", True),
        ("fusion(%x), kind=kCustom, calls=%inner", True),
        ("fusion(%x), kind=kLoop, calls=%inner_condition", False),
        ("while(%x), condition=%inner_condition, body=%inner_condition", False),
        ('custom-call(%x), custom_call_target="__cublas$lt$matmul"', True),
        ('custom-call(), custom_call_target="AllocateBuffer"', False),
    ],
)
def test_what_hides_a_send(line, is_work):
    """A message can hide behind matmuls, not behind allocations or loops without any."""
    phase = "while(%x), condition=%inner_condition, body=%inner"
    assert phase in TEXT
    first, _ = find_sends(TEXT.replace(phase, line))
    assert first.is_hidden is is_work
