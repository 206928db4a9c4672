"""Groups of devices, in every way in which XLA's text names them."""

import pytest

from jaxpipe.aot.groups import device_groups

AXES = "mesh['pipe'=2,'data'=3,'tensor'=1]"


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, channel_id=1", ((0, 2), (1, 3))),
        ("replica_groups={}, channel_id=1", ()),
        ("source_target_pairs={{0,1},{1,2}}, channel_id=1", ((0, 1), (1, 2))),
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        (f"replica_groups={AXES} {{'data'}}", ((0, 1, 2), (3, 4, 5))),
        (f"replica_groups={AXES} {{'pipe'}}", ((0, 3), (1, 4), (2, 5))),
        (f"replica_groups={AXES} {{'pipe','data'}}", ((0, 1, 2, 3, 4, 5),)),
        ("replica_groups=mesh['x'=8] {'x':(2)2}", None),
        ("replica_groups=mesh['x'=2], device_ids=(1,0) {'x'}", None),
        ("channel_id=1", None),
    ],
)
def test_groups(line, groups):
    assert device_groups(f"%r = f32[8]{{0}} all-reduce(%a), {line}, to_apply=%add") == groups
