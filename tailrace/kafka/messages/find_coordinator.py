"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, CoordinatorKey, ErrorMessage, Int8, Int16, Int32, Message, On, String


class FindCoordinatorRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.FIND_COORDINATOR, "0-6", flexible="3+")

    key: Annotated[CoordinatorKey, On("0-3")] = ""
    key_type: Annotated[Int8, On("1+")] = 0
    coordinator_keys: Annotated[list[CoordinatorKey], On("4+")] = []


class Coordinator(Message):
    key: Annotated[CoordinatorKey, On("4+")] = ""
    node_id: Annotated[Int32, On("4+")] = 0
    host: Annotated[String, On("4+")] = ""
    port: Annotated[Int32, On("4+")] = 0
    error_code: Annotated[Int16, On("4+")] = 0
    error_message: Annotated[ErrorMessage | None, On("4+", nullable="4+", ignorable=True)] = ""


class FindCoordinatorResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Annotated[Int16, On("0-3")] = 0
    error_message: Annotated[ErrorMessage | None, On("1-3", nullable="1+", ignorable=True)] = ""
    node_id: Annotated[Int32, On("0-3")] = 0
    host: Annotated[String, On("0-3")] = ""
    port: Annotated[Int32, On("0-3")] = 0
    coordinators: Annotated[list[Coordinator], On("4+")] = []
