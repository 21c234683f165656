# SPDX-License-Identifier: Apache-2.0
"""Encodes Chakra execution traces as MLCommons' tools write them: protobuf messages, each after its length
(schema/protobuf/et_def.proto)."""
import struct

TYPES = ["INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
         "COMM_RECV_NODE", "COMM_COLL_NODE"]
# Field of AttributeProto by kind of value.
VALUES = {"double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15, "sint64": 17,
          "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27, "bool_list": 28, "string": 29}


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number, value):
    """Encodes a varint, or a text or message with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name, kind, value):
    number = VALUES[kind]
    if kind in ("double", "fixed64", "sfixed64"):
        coded = varint(number << 3 | 1) + struct.pack({"double": "<d", "fixed64": "<Q", "sfixed64": "<q"}[kind], value)
    elif kind in ("float", "fixed32", "sfixed32"):
        coded = varint(number << 3 | 5) + struct.pack({"float": "<f", "fixed32": "<I", "sfixed32": "<i"}[kind], value)
    elif kind in ("sint32", "sint64"):
        coded = field(number, value * 2 if value >= 0 else -value * 2 - 1)
    elif kind == "bool_list":
        coded = field(number, field(1, bytes(value)))
    else:
        coded = field(number, value)
    return field(1, name) + coded


def node(number, name, kind, waits=(), duration=0, start=0, packed=True, control=(), **attributes):
    """Encodes a node. Zeros are left out, as protobuf does. Attributes: name=("int64", value)."""
    out = b""
    if number:
        out += field(1, number)
    out += field(2, name) + field(3, TYPES.index(kind))
    for at, ids in ((4, control), (5, waits)):
        if packed and ids:
            out += field(at, b"".join(varint(i) for i in ids))
        elif ids:
            out += b"".join(field(at, i) for i in ids)
    if start:
        out += field(6, start)
    if duration:
        out += field(7, duration)
    out += field(8, field(1, "[]") + field(2, "[]"))
    for attribute_name, (kind_of, value) in attributes.items():
        out += field(10, attribute(attribute_name, kind_of, value))
    return out


def trace(nodes, version="0.0.4"):
    metadata = field(1, version) if version is not None else b""
    return b"".join(varint(len(m)) + m for m in [metadata, *nodes])
